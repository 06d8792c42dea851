// The parts of tiles.cpp: tiles, queries as lanes of vectors, blocks of keys, powers of two, and the order of the work.
#pragma once

#include <cmath>
#include <limits>

#include "features.h"

namespace {

constexpr int64_t BLOCK_KEYS = 64;  // with as many queries, scores fit the first cache
constexpr int64_t MAX_LANES = 64;   // queries that are processed together
constexpr int64_t GRANULE = 16;     // of them, whole vectors, that compute a range of keys of their own
constexpr int64_t MAX_ROW_BYTES = 1024;  // from row to row, of those that are read in place

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

// Whether rows with a step are far from each other: caches then hold few of them, and the processor foresees none
template <typename R>
bool is_far(const Address& tensor, int64_t step) {
  return std::abs(step * tensor.l) * int64_t(sizeof(R)) > MAX_ROW_BYTES;
}

// Fetch a row of the next window into the second cache
template <typename R>
void prefetch(const R* row, int64_t width) {
  for (int64_t d = 0; d < width; d += 64 / sizeof(R)) __builtin_prefetch(row + d, 0, 2);
}

// A vector of scores, of which those become minus infinity whose pairs do not count; n: lanes that exist
template <typename T>
void hide_vector(T* scores, const bool* mask, int64_t n) {
  typedef Simd<T> X;
  typedef typename X::Vec Vec;
  typedef uint8_t Bytes __attribute__((vector_size(X::W)));
  typedef decltype(Vec{} < Vec{}) Choice;
  Bytes bytes = {};
  std::memcpy(&bytes, mask, std::min<int64_t>(X::W, n));
  const Vec lowest = Vec{} - std::numeric_limits<T>::infinity();
  X::store(scores, __builtin_convertvector(bytes, Choice) ? X::load(scores) : lowest);
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
  int64_t position(int64_t i) const { return tile.first + window * tile.advance + row(i) * tile.step; }
  int64_t row(int64_t i) const { return group == 1 ? first + i : (first + i) / group; }  // divisions are slow
  int64_t head(int64_t i) const { return group == 1 ? 0 : (first + i) % group; }
};

// Lanes [lane, end) and the range of a block's keys that they compute
struct Stretch {
  int64_t lane, end, from, to;
};

// Up to BLOCK_KEYS keys of a window: their positions, and which exist and are no padding
struct KeyBlock {
  int64_t n = 0, step = 0;  // step: of the positions, 0 if it differs
  int64_t positions[BLOCK_KEYS];
  bool seen[BLOCK_KEYS], all_seen = true;
  const bool* mask = nullptr;  // of the first key and lane, or null where every lane sees all keys
  int64_t mask_stride = 0;
  Stretch stretches[MAX_LANES / GRANULE];
  int64_t n_stretches = 0;

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
    cut_lanes(at.n);
    return n > 0;
  }

  // Whether as many rows as these, with the step of the positions, exist
  bool reaches(int64_t rows, int64_t n_keys) const {
    const int64_t last = positions[0] + (rows - 1) * step;
    return last >= 0 && last < n_keys;
  }

  const Stretch* begin() const { return stretches; }
  const Stretch* end() const { return stretches + n_stretches; }

  // Ranges begin at multiples of 8, the rows of a product, and end there or at the last key
  void cut_lanes(int64_t lanes) {
    n_stretches = 0;
    for (int64_t lane = 0; lane < lanes; lane += GRANULE) {
      int64_t from = 0, to = n;
      const auto sees = [&](int64_t j) {
        return seen[j] && Seen(mask + j * mask_stride + lane, std::min(GRANULE, lanes - lane)).any;
      };
      while (mask && from < to && !sees(from)) from++;
      while (mask && from < to && !sees(to - 1)) to--;
      if (from == to) continue;
      from = from / 8 * 8, to = std::min(round_up(to, 8), n);
      Stretch* last = stretches + n_stretches - 1;
      if (n_stretches && last->end == lane && last->from == from && last->to == to) last->end += GRANULE;
      else stretches[n_stretches++] = {lane, lane + GRANULE, from, to};
    }
  }
};

int64_t count_products(const TileSizes& s, const Tile* tiles) {
  int64_t pairs = 0;
  for (int64_t t = 0; t < s.tiles; t++) pairs += tiles[t].count * tiles[t].rows * tiles[t].keys;
  return pairs * s.heads * s.group * (s.width + s.values);
}

// Every item of one tile after another, each thread with a worker of its own; a tile is finished before the next one
// begins, since both may have the same queries
template <typename Count, typename MakeWorker, typename Work>
void visit_tiles(const TileSizes& s, const Tile* tiles, int64_t threads, Count count_items, MakeWorker make_worker,
                 Work work) {
  typedef decltype(make_worker()) Worker;
  std::vector<std::unique_ptr<Worker>> workers(limit_threads(threads, count_products(s, tiles)));
  for (const Tile* tile = tiles; tile < tiles + s.tiles; tile++) {
    const int64_t items = count_items(*tile);
    std::atomic<int64_t> next{0};
    run_together(std::min<int64_t>(workers.size(), items), [&](int64_t i) {
      if (!workers[i]) workers[i] = std::make_unique<Worker>(make_worker());
      for (int64_t item = next++; item < items; item = next++) work(*workers[i], *tile, item);
    });
  }
}

}  // namespace
