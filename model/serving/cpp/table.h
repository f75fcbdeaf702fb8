// A table of ids in a folder, which model/serving/table.py wrote.
#pragma once

#include <algorithm>

#include "manifest.h"

namespace serving {

constexpr int64_t bucket_slots = 16;  // of an IdTable

// Verified and mapped: its files must not be changed while it is served.
struct Table {
    std::filesystem::path folder;
    Constants constants;

    // ExportError: the folder is not whole, or no table of ids.
    explicit Table(const std::filesystem::path& path) {
        std::error_code error;
        folder = std::filesystem::canonical(path, error);  // a link may lead to another folder soon
        if (error) fail(path, ": cannot be read: ", error.message());
        const Manifest manifest = Manifest::read(folder);
        manifest.verify(folder);
        constants = manifest.mapped(folder);
        std::string names;
        for (const auto& [name, tensor] : constants) names += (names.empty() ? "" : ", ") + name;
        if (names != "bucket_offsets, seeds, slots, tags") fail(folder, ": not a table of ids: it has ", names);
        if (!is_whole()) fail(folder, ": bucket_offsets, tags and slots are not of one table");
    }

    // ExportError: it cannot take the place of the table among these constants of a model.
    void check(const std::vector<Tensors>& model) const {
        for (const auto& [name, tensor] : constants) {
            const auto old = std::find_if(model.begin(), model.end(), [&](const Tensors& t) { return t.name == name; });
            if (old == model.end()) fail(folder, ": the model has no ", name, ": its ids are not in a table");
            const size_t free = name == "tags" || name == "slots" ? 1 : 0;  // of the same features: any number of slots
            const std::vector<int64_t> sizes = old->numbers();
            if (tensor.scalar_type() != old->dtype || size_t(tensor.dim()) != sizes.size() ||
                !std::equal(sizes.begin() + free, sizes.end(), tensor.sizes().begin() + free))
                fail(folder, ": for other features than the model's: ", name, " is ", tensor.scalar_type(), " ",
                     tensor.sizes(), ", and the model's ", old->dtype, " ", old->sizes());
        }
    }

private:
    bool is_whole() const {
        const at::Tensor &tags = constants.at("tags"), &slots = constants.at("slots");
        const at::Tensor& offsets = constants.at("bucket_offsets");
        if (tags.dim() != 1 || slots.dim() != 2 || slots.size(0) != tags.size(0) || slots.size(1) != 2) return false;
        if (offsets.dim() != 1 || !offsets.numel() || offsets.scalar_type() != at::kLong) return false;
        const int64_t *begin = offsets.const_data_ptr<int64_t>(), *end = begin + offsets.numel();
        return *begin == 0 && std::is_sorted(begin, end) && end[-1] == tags.size(0) / bucket_slots &&
               tags.size(0) % bucket_slots == 0;
    }
};

}  // namespace serving
