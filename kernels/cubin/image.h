// What code for a GPU says of itself before a driver sees it: its format, its architecture, its kernels and the sizes of
// their parameters. C++17 and the standard library alone.
//
// A cubin is an ELF file for the machine CUDA (190). The numbers of its fields are those of LLVM's ELF.h, and were seen
// in cubins of CUDA 12.8, 13.0 and 13.1.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace cubin {

// code: the CUresult that the driver gave; 0 for what was found without it.
struct Error : std::runtime_error {
    int code;
    explicit Error(const std::string& what, int code = 0) : std::runtime_error(what), code(code) {}
};

enum class Format { cubin, fatbin, ptx };

struct Contents {
    explicit Contents(Format format) : format(format) {}

    Format format;
    int arch = 0;        // 90 for sm_90; 0: a fatbin, which has several
    bool only = false;   // for that one alone (sm_90a), not for a later minor version of it
    // The kernels by name, and how many bytes each parameter has, of a cubin. PTX has names alone, a fatbin nothing.
    std::map<std::string, std::vector<size_t>> kernels;

    // A cubin runs on its own architecture and on later minor versions of it; PTX on every later one.
    bool runs_on(int device) const {
        if (format == Format::fatbin || arch == device) return true;
        if (only || arch > device) return false;
        return format == Format::ptx || arch / 10 == device / 10;
    }
};

namespace reading {

class Bytes {
   public:
    Bytes(const void* data, size_t size, const std::string& where)
        : data_(static_cast<const unsigned char*>(data)), size_(size), where_(where) {}

    template <class T>
    T at(uint64_t offset) const {
        need(offset, sizeof(T));
        T value;
        std::memcpy(&value, data_ + offset, sizeof value);  // an embedded image may lie anywhere
        return value;
    }
    void need(uint64_t offset, uint64_t bytes) const {
        if (offset > size_ || bytes > size_ - offset)
            throw Error(where_ + " is truncated: it has " + std::to_string(size_) + " bytes, and what it holds ends at byte " +
                        std::to_string(offset + bytes));
    }
    std::string text(uint64_t offset) const {
        need(offset, 1);
        const auto* end = static_cast<const unsigned char*>(std::memchr(data_ + offset, 0, size_ - offset));
        if (!end) throw Error(where_ + " is truncated: a name in it does not end");
        return std::string(reinterpret_cast<const char*>(data_ + offset), size_t(end - data_ - offset));
    }

   private:
    const unsigned char* data_;
    uint64_t size_;
    const std::string& where_;
};

struct Section {
    std::string name;
    uint64_t offset, bytes;
};

inline std::vector<Section> sections(const Bytes& elf) {
    constexpr uint32_t no_bits = 8;  // of zeros, which the file does not hold
    const auto table = elf.at<uint64_t>(40);
    const auto entry = elf.at<uint16_t>(58), count = elf.at<uint16_t>(60), names = elf.at<uint16_t>(62);
    elf.need(table, uint64_t(entry) * count);
    elf.need(elf.at<uint64_t>(32), uint64_t(elf.at<uint16_t>(54)) * elf.at<uint16_t>(56));  // the program headers
    auto header = [&](unsigned i) { return table + uint64_t(entry) * i; };
    std::vector<Section> found;
    for (unsigned i = 0; i < count; ++i) {
        const auto offset = elf.at<uint64_t>(header(i) + 24), bytes = elf.at<uint64_t>(header(i) + 32);
        if (elf.at<uint32_t>(header(i) + 4) == no_bits) continue;
        elf.need(offset, bytes);
        found.push_back({elf.text(elf.at<uint64_t>(header(names) + 24) + elf.at<uint32_t>(header(i))), offset, bytes});
    }
    return found;
}

// The attributes of an .nv.info or .nv.compat section: format (1 byte), number (1), and a value of 0 to 2 bytes (padded to
// 4) or, in format 4, its length and as many bytes.
template <class Visit>
void attributes(const Bytes& elf, const Section& section, Visit visit) {
    for (uint64_t at = section.offset; at + 4 <= section.offset + section.bytes;) {
        const auto format = elf.at<uint8_t>(at), number = elf.at<uint8_t>(at + 1);
        const auto value = elf.at<uint16_t>(at + 2);
        visit(format, number, value, at + 4);
        at += 4 + (format == 4 ? value : 0);
    }
}

// Each parameter: its place in the list (2 bytes at 4), and its size in the last four bytes: from bit 18 on in the first
// form, plainly in the second, which parameters of more than 4 KB have.
inline std::vector<size_t> parameters(const Bytes& elf, const Section& info) {
    std::map<unsigned, size_t> sizes;
    attributes(elf, info, [&](uint8_t format, uint8_t number, uint16_t, uint64_t at) {
        if (format != 4 || (number != 0x17 && number != 0x45)) return;
        const auto size = elf.at<uint32_t>(at + 8);
        sizes[elf.at<uint16_t>(at + 4)] = number == 0x17 ? size >> 18 : size;
    });
    std::vector<size_t> listed;
    for (const auto& [place, size] : sizes) listed.push_back(size);
    return listed;
}

inline Contents of_cubin(const void* data, size_t size, const std::string& where) {
    const Bytes elf(data, size, where);
    elf.need(0, 64);
    if (const auto machine = elf.at<uint16_t>(18); machine != 190)
        throw Error(where + " is an ELF file for machine " + std::to_string(machine) + ", not for a GPU (190)");
    Contents contents(Format::cubin);
    // From CUDA 13 on, and for sm_100 before, the architecture is in the second byte of the flags.
    const auto version = elf.at<uint8_t>(8);
    const auto flags = elf.at<uint32_t>(48);
    contents.arch = int((version >= 8 ? flags >> 8 : flags) & 0xff);
    contents.only = version < 8 && flags & 0x800;
    const std::string info = ".nv.info.";
    for (const Section& section : sections(elf)) {
        if (section.name == ".nv.compat")
            attributes(elf, section, [&](uint8_t, uint8_t number, uint16_t value, uint64_t) {
                if (number == 9 && value == 1) contents.only = true;
            });
        if (section.name.rfind(info, 0) == 0)
            contents.kernels[section.name.substr(info.size())] = parameters(elf, section);
    }
    return contents;
}

inline Contents of_ptx(const std::string& text, const std::string& where) {
    Contents contents(Format::ptx);
    const size_t target = text.find(".target");
    const size_t sm = target == std::string::npos ? target : text.find("sm_", target);
    if (sm == std::string::npos) throw Error(where + " is PTX without a .target: it is truncated, or is something else");
    size_t end = sm + 3;
    for (; end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])); ++end)
        contents.arch = 10 * contents.arch + (text[end] - '0');
    contents.only = end < text.size() && text[end] == 'a';
    int open = 0;
    for (char c : text) open += (c == '{') - (c == '}');
    if (open) throw Error(where + " is truncated: PTX in which a brace is not closed");
    for (size_t at = text.find(".entry"); at != std::string::npos; at = text.find(".entry", at + 1)) {
        const size_t first = text.find_first_not_of(" \t\n", at + 6);
        const size_t last = text.find_first_of(" \t\n(", first);
        if (first != std::string::npos) contents.kernels[text.substr(first, last - first)];
    }
    return contents;
}

}  // namespace reading

// Reads and checks it. where: what errors call it.
inline Contents contents_of(const void* data, size_t size, const std::string& where) {
    if (size < 16) throw Error(where + " has " + std::to_string(size) + " bytes: too few for a cubin, a fatbin or PTX");
    const char* bytes = static_cast<const char*>(data);
    if (std::memcmp(bytes, "\177ELF", 4) == 0) return reading::of_cubin(data, size, where);
    const reading::Bytes raw(data, size, where);
    if (raw.at<uint32_t>(0) == 0xba55ed50) {
        raw.need(raw.at<uint16_t>(6), raw.at<uint64_t>(8));
        return Contents(Format::fatbin);
    }
    const std::string text(bytes, strnlen(bytes, size));
    if (text.find(".version") != std::string::npos) return reading::of_ptx(text, where);
    throw Error(where + " is neither a cubin (an ELF file), nor a fatbin, nor PTX: none of their first bytes are its");
}

}  // namespace cubin
