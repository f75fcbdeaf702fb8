// A program's arguments, and how it ends: 2, with a line on stderr, where something is wrong.
#pragma once

#include <cstdio>
#include <functional>

#include "manifest.h"

namespace serving {

class Arguments {
public:
    Arguments(int count, char** words, std::string usage)
        : words_(words + 1, words + count), usage_(std::move(usage)) {}

    // Calls option(word) for each word, which takes what follows it by value() or number(). The one word that is no
    // option is returned.
    std::string each(const std::function<bool(const std::string&)>& option) {
        std::string only;
        for (at_ = 0; at_ < words_.size(); ++at_) {
            const std::string word = words_[at_];
            if (option(word)) continue;
            if (!only.empty() || word.rfind("--", 0) == 0) fail(word, ": not expected: ", usage_);
            only = word;
        }
        if (only.empty()) fail(usage_);
        return only;
    }
    std::string value() {
        if (at_ + 1 == words_.size()) fail(words_[at_], ": expected a value");
        return words_[++at_];
    }
    int number(int least, int most) {
        const std::string option = words_[at_], text = value();
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        const int found = digits && text.size() < 7 ? std::stoi(text) : -1;
        if (found < least || found > most)
            fail(option, ": expected a number from ", least, " to ", most, "; got ", text);
        return found;
    }

private:
    std::vector<std::string> words_;
    std::string usage_;
    size_t at_ = 0;
};

inline int exit_status_of(const char* program, const std::function<int()>& run) {
    try {
        return run();
    } catch (const std::exception& error) {
        const std::string text = error.what();
        std::fprintf(stderr, "%s: %s\n", program, text.substr(0, 600).c_str());
        return 2;
    }
}

}  // namespace serving
