// Which mutants there are in a program that holds many, and which of them this run is: the number in MUTANT, 0 for none.
// tests/mutants.py writes calls of these functions into a copy of the kernels.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

namespace mutants {

constexpr int most = 1 << 16;
inline const int chosen = std::getenv("MUTANT") ? std::atoi(std::getenv("MUTANT")) : 0;

// Where the numbers of all mutants that are come to are written, in binary and each at once, as a process may end
// without a word; -1: nowhere. A kernel's threads have small stacks, so nothing is formatted.
inline const int reached_file =
    std::getenv("MUTANTS_REACHED") ? open(std::getenv("MUTANTS_REACHED"), O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
inline std::atomic<bool> reached[most];

// Whether this run is that mutant; asked where the mutant differs.
template <int number>
__attribute__((always_inline)) inline bool is() {
    static_assert(number < most);
    if (reached_file >= 0 && !reached[number].exchange(true, std::memory_order_relaxed)) {
        int written = number;
        if (write(reached_file, &written, sizeof written) < 0) std::abort();
    }
    return number == chosen;
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
        return is<number>() ? compare<changed>(left.a, b) : left.a operation b;                           \
    }
MUTANTS_COMPARE(<)
MUTANTS_COMPARE(>)
MUTANTS_COMPARE(<=)
MUTANTS_COMPARE(>=)
#undef MUTANTS_COMPARE

}  // namespace mutants
