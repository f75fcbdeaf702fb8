// Which mutants there are in a program that holds many, and which of them this run is: the number in MUTANT, 0 for none.
// tests/mutants.py writes calls of these functions into a copy of the kernels.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <type_traits>

namespace mutants {

constexpr int most = 1 << 16;
inline const int chosen = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : 0;

// Where the numbers of all mutants that are come to are written, in binary and each at once, as a process may end
// without a word; -1: nowhere. A kernel's threads have small stacks, so nothing is formatted.
inline const int reached_file =
    std::getenv("MUTANTS_REACHED") ? open(std::getenv("MUTANTS_REACHED"), O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
inline std::atomic<bool> reached[most];

// Whether this run is that mutant; asked where the mutant differs, or may.
template <int number>
__attribute__((always_inline)) inline bool is() {
    static_assert(number < most);
    if (reached_file >= 0 && !reached[number].exchange(true, std::memory_order_relaxed)) {
        int written = number;
        if (write(reached_file, &written, sizeof written) < 0) std::abort();
    }
    return number == chosen;
}

// What a comparison gives in this run. A run in which the two never differ is that of the kernel as it is.
template <int number>
__attribute__((always_inline)) inline bool either(bool own, bool changed) {
    return own != changed && is<number>() ? changed : own;
}

// a < As<number, '>'>() <= b is a <= b, and a > b if this run is that mutant. < and > bind as <= and >= do, so that
// nobody need know where a begins and b ends. 'l' and 'g' are <= and >=; 't' is true whatever a and b are.
template <int number, char changed>
struct As {};
template <int number, char changed, class A>
struct Left {
    const A& a;
};

template <int number, char changed, class A>
__attribute__((always_inline)) inline Left<number, changed, A> operator<(const A& a, As<number, changed>) {
    return {a};
}
template <char changed, class A, class B>
__attribute__((always_inline)) inline bool compare(const A& a, const B& b) {
    if constexpr (changed == 't') return true;
    else if constexpr (changed == '<') return a < b;
    else if constexpr (changed == '>') return a > b;
    else if constexpr (changed == 'l') return a <= b;
    else return a >= b;
}

#define MUTANTS_COMPARE(operation)                                                                        \
    template <int number, char changed, class A, class B>                                                 \
    __attribute__((always_inline)) inline bool operator operation(Left<number, changed, A> left, const B& b) { \
        return either<number>(left.a operation b, compare<changed>(left.a, b));                             \
    }
MUTANTS_COMPARE(<)
MUTANTS_COMPARE(>)
MUTANTS_COMPARE(<=)
MUTANTS_COMPARE(>=)
#undef MUTANTS_COMPARE

// a < Bound<number, step>() + b is a < b, and a < step + b if this run is that mutant. What stands behind b stays: the
// sum is a bound itself, to which more is added. There may be several at one place: their numbers and steps in turn.
template <int... changes>
struct Bound {};
template <class B, int... changes>
struct Bounded {
    B b;
};

template <int... changes, int... others>
__attribute__((always_inline)) inline Bound<changes..., others...> operator+(Bound<changes...>, Bound<others...>) {
    return {};
}
template <int... changes, class B>
__attribute__((always_inline)) inline auto operator+(Bound<changes...>, const B& b) {
    return Bounded<decltype(0 + b), changes...>{0 + b};
}
template <class B>
__attribute__((always_inline)) inline B moved(B b, int step) {
    if constexpr (std::is_integral_v<B>) {
        B sum;
        return __builtin_add_overflow(b, step, &sum) ? b : sum;
    } else {
        return b + step;
    }
}
template <int number, int step, int... others, class B, class Compare>
__attribute__((always_inline)) inline bool bounded(B b, Compare compare) {
    const bool own = compare(b), result = either<number>(own, compare(moved(b, step)));
    if constexpr (sizeof...(others) > 0) {
        if (result == own) return bounded<others...>(b, compare);
    }
    return result;
}

#define MUTANTS_ADD(operation)                                                                     \
    template <class B, int... changes, class C>                                                    \
    __attribute__((always_inline)) inline auto operator operation(Bounded<B, changes...> left, const C& c) { \
        return Bounded<decltype(left.b operation c), changes...>{left.b operation c};              \
    }
MUTANTS_ADD(+)
MUTANTS_ADD(-)
#undef MUTANTS_ADD
#define MUTANTS_BOUND(operation)                                                                   \
    template <class A, class B, int... changes>                                                    \
    __attribute__((always_inline)) inline bool operator operation(const A& a, Bounded<B, changes...> right) { \
        return bounded<changes...>(right.b, [&](B b) __attribute__((always_inline)) { return a operation b; }); \
    }
MUTANTS_BOUND(<)
MUTANTS_BOUND(>)
MUTANTS_BOUND(<=)
MUTANTS_BOUND(>=)
#undef MUTANTS_BOUND

}  // namespace mutants
