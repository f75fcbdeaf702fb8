// Which rows of all tables an id of table f names: what a gradient, or an update, of embedding bags goes by.
#pragma once

#include "device/launch.cuh"

namespace embedding_bags_sort {

struct Tables {
    const long long* row_offsets;
    long long rows, padding;  // padding: negative for none
    int features;

    // The first row of table f and the end of its rows; never beyond all rows, whatever row_offsets says.
    __device__ long long bound(long long f) const {
        long long offset = row_offsets[f];
        return offset < 0 ? 0 : offset > rows ? rows : offset;
    }
    // The end of the rows of all tables before f: where table f begins, unless row_offsets fall.
    __device__ long long end_before(long long f) const {
        long long end = 0;
        for (long long g = 0; g <= f; ++g) end = bound(g) > end ? bound(g) : end;
        return end;
    }
};

// Whether a table of so many rows has the id. Ids are 64 bits wide here, whatever they were: 2^32 + 5 is not 5.
__device__ inline bool has_row(const Tables& tables, long long height, long long id) {
    return id >= 0 && id < height && (tables.padding < 0 || id != tables.padding);
}

}  // namespace embedding_bags_sort
