// The parts of tiles.cpp: tiles, queries as lanes of vectors, blocks of keys, and powers of two.
#pragma once

#include <cmath>

#include "features.h"

namespace {

constexpr int64_t BLOCK_KEYS = 64;  // with as many queries, scores fit the first cache
constexpr int64_t MAX_LANES = 64;   // queries that are processed together

struct TileSizes {
  int64_t heads, group, keys, width, values, heads_per_row, parts, tiles;
};

// Windows of queries, at first + window * advance + step * i, and positions of keys, which advance as well or are a
// table's rows; mask: which keys a query sees, [windows or 1, keys, rows * group], or null for all
struct Tile {
  int64_t count, rows, first, step, advance, keys, key_advance;
  const int64_t* positions;
  int64_t positions_stride;
  const bool* mask;
  int64_t mask_stride;
  int64_t count_chunks(int64_t group) const { return (rows * group + MAX_LANES - 1) / MAX_LANES; }
  int64_t count_lanes(int64_t group) const { return count * count_chunks(group); }
};

inline Simd<float>::Vec power_of_two(Simd<float>::Vec x) {
  typedef Simd<float>::Vec Vec;
  constexpr float ROUND = 12582912.f;  // 1.5 2^23: numbers added to it lose their fractions
  const Vec shifted = x + ROUND, f = x - (shifted - ROUND);
  const Vec p = power_of_fraction(f);
  return x < -126.f ? Vec{} : (Vec)((Bits)p + ((Bits)shifted << 23));  // zero also for a hidden key
}
inline Simd<double>::Vec power_of_two(Simd<double>::Vec x) {
  for (int i = 0; i < Simd<double>::W; i++) x[i] = std::exp2(x[i]);
  return x;
}

// Whether any and all of n lanes see a key
struct Seen {
  bool any = false, all = true;
  Seen(const bool* lanes, int64_t n) {
    uint64_t some = 0, every = ONES;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, lanes + i, sizeof eight);
      some |= eight;
      every &= eight;
    }
    any = some, all = every == ONES;
    for (; i < n; i++) {
      any |= lanes[i];
      all &= lanes[i];
    }
  }
  static constexpr uint64_t ONES = 0x0101010101010101;
};

// Queries that are processed together: some rows of a window, each with all heads of a group
struct Lanes {
  const Tile& tile;
  const int64_t group, window, first, n;
  Lanes(const Tile& tile, int64_t group, int64_t i)
      : tile(tile), group(group), window(i / tile.count_chunks(group)),
        first(i % tile.count_chunks(group) * MAX_LANES), n(std::min(MAX_LANES, tile.rows * group - first)) {}
  int64_t position(int64_t i) const { return tile.first + window * tile.advance + (first + i) / group * tile.step; }
  int64_t head(int64_t i) const { return (first + i) % group; }
};

// Up to BLOCK_KEYS keys of a window: their positions, and which exist and are no padding
struct KeyBlock {
  int64_t n = 0, step = 0;  // step: of the positions, 0 if it differs
  int64_t positions[BLOCK_KEYS];
  bool seen[BLOCK_KEYS], all_seen = true;
  const bool* mask = nullptr;  // of the first key and lane, or null where every lane sees all keys
  int64_t mask_stride = 0;

  // The keys [from, to) of a window, without those at both ends that no lane sees; false if none is left. valid: of the
  // row of the batch, or null
  bool find(const Lanes& at, int64_t from, int64_t to, int64_t n_keys, Rows<const bool> valid) {
    const Tile& tile = at.tile;
    const int64_t* table = tile.positions + at.window * tile.positions_stride;
    const bool* window_mask = tile.mask ? tile.mask + at.window * tile.mask_stride + at.first : nullptr;
    mask_stride = tile.rows * at.group;
    bool all[BLOCK_KEYS];
    const auto look = [&](int64_t j, bool& all_lanes) {
      const int64_t position = table[j] + at.window * tile.key_advance;
      bool any = table[j] >= 0 && position >= 0 && position < n_keys;
      if (any && valid.data) any = valid.data[position * valid.stride];
      all_lanes = any;
      if (any && window_mask) {
        const Seen lanes(window_mask + j * mask_stride, at.n);
        any = lanes.any;
        all_lanes = lanes.all;
      }
      return any;
    };
    bool ignored;
    while (from < to && !look(from, ignored)) from++;
    while (from < to && !look(to - 1, ignored)) to--;
    n = to - from;
    all_seen = true;
    bool every_lane = true;
    for (int64_t j = 0; j < n; j++) {
      seen[j] = look(from + j, all[j]);
      positions[j] = std::clamp<int64_t>(table[from + j] + at.window * tile.key_advance, 0, n_keys - 1);
      all_seen &= seen[j];
      every_lane &= all[j] || !seen[j];
    }
    step = n > 1 ? positions[1] - positions[0] : 1;
    for (int64_t j = 2; j < n; j++)
      if (positions[j] - positions[j - 1] != step) step = 0;
    mask = every_lane || !window_mask ? nullptr : window_mask + from * mask_stride;
    return n > 0;
  }
};

}  // namespace
