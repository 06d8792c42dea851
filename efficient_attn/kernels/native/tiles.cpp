// Softmax over the tiles of a pattern, on the CPU, forward and backward: windows of queries, each over its own keys.
//
//   m' = max(m, max_j s_j),  l <- 2^(m - m') l + sum_j 2^(s_j - m'),  o <- 2^(m - m') o + sum_j 2^(s_j - m') v_j
//
// with s = q k^T scale log2(e), for one block of keys after another, from the log-sum-exp and the output of the tiles
// before. Scores are made transposed: keys are rows and queries the lanes of vectors, so that keys and values are read
// where they are, and maxima and sums go down the lanes. Of a block, leading and trailing keys that no query sees are
// not computed. The backward pass makes the weights again, from the log-sum-exps. Half precision is widened where rows
// are loaded. cpp_tiles.py passes addresses, strides and tiles.

#include <cmath>
#include <limits>

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
};

inline Simd<float>::Vec power_of_two(Simd<float>::Vec x) {
  typedef Simd<float>::Vec Vec;
  constexpr float ROUND = 12582912.f;  // 1.5 2^23: numbers added to it lose their fractions
  const Vec shifted = x + ROUND, f = x - (shifted - ROUND);
  Vec p = f * 1.5403530e-4f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.f;
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
  const int64_t window, group, first, n;
  int64_t position(int64_t i) const {
    return tile.first + window * tile.advance + (first + i) / group * tile.step;
  }
  int64_t head(int64_t i) const { return (first + i) % group; }
};

// Up to BLOCK_KEYS keys of a window: their positions, and which exist and are no padding
struct KeyBlock {
  int64_t n = 0, step = 0;  // step: of the positions, 0 if it differs
  int64_t positions[BLOCK_KEYS];
  bool seen[BLOCK_KEYS], all_seen = true;
  const bool* mask = nullptr;  // of the first key and lane, or null where every lane sees all keys
  int64_t mask_stride = 0;
};

template <typename T>
struct GradientBlocks {  // of lanes, and [keys, lanes]
  Block<T> grad, transposed, grad_weights, grad_q, added;
  explicit GradientBlocks(const TileSizes& s)
      : grad(MAX_LANES, s.values), transposed(s.values, MAX_LANES), grad_weights(BLOCK_KEYS, MAX_LANES),
        grad_q(MAX_LANES, s.width), added(BLOCK_KEYS, std::max(s.width, s.values)) {}
};

template <typename T, typename S>
struct TileKernel {
  typedef Simd<T> X;
  typedef typename X::Vec Vec;
  static constexpr int W = X::W;
  static constexpr T LOWEST = -std::numeric_limits<T>::infinity(), LOG2_E = T(1.4426950408889634074L);

  const Address *q, *k, *v, *valid;
  const TileSizes& s;
  const T scale;  // of scores, which are logarithms of base 2
  Block<T> queries, transposed, weights, keys, values, sums;
  KeyBlock block;
  int64_t head = 0, lanes = 0;  // lanes: a multiple of a vector's

  TileKernel(const Address* t, const TileSizes& s, double scale)
      : q(t), k(t + 1), v(t + 2), valid(t + 3), s(s), scale(T(scale) * LOG2_E), queries(MAX_LANES, s.width),
        transposed(s.width, MAX_LANES), weights(BLOCK_KEYS, MAX_LANES), keys(BLOCK_KEYS, s.width),
        values(BLOCK_KEYS, s.values), sums(MAX_LANES, s.values) {}

  // Rows of the lanes, zeros beyond the last
  template <typename R>
  void load_lanes(Block<T>& to, const Address& from, const Lanes& at, int64_t width, T factor) const {
    for (int64_t i = 0; i < at.n; i++) {
      T* row = to.data + i * to.ld;
      to.copy_row(row, from.rows<const R>(head, at.head(i), at.position(i)).data, width);
      if (factor != 1)
        for (int64_t d = 0; d < to.ld; d += W) X::store(row + d, X::load(row + d) * factor);
    }
    std::memset(to.data + at.n * to.ld, 0, (Block<T>::pad(lanes) - at.n) * to.ld * sizeof(T));
  }

  void start(const Lanes& at, int64_t new_head) {
    head = new_head;
    lanes = round_up(at.n, W);
    load_lanes<S>(queries, *q, at, s.width, scale);
    X::transpose(transposed.data, transposed.ld, queries.data, queries.ld, lanes, queries.ld);
  }

  // The keys [from, to) of a window, without those at both ends that no lane sees; false if none is left
  bool find_keys(const Lanes& at, int64_t from, int64_t to) {
    const Tile& tile = at.tile;
    const int64_t* table = tile.positions + at.window * tile.positions_stride;
    const bool* mask = tile.mask ? tile.mask + at.window * tile.mask_stride + at.first : nullptr;
    const int64_t mask_stride = tile.rows * s.group;
    bool all[BLOCK_KEYS];
    const auto look = [&](int64_t j, bool& all_lanes) {
      const int64_t position = table[j] + at.window * tile.key_advance;
      bool any = table[j] >= 0 && position >= 0 && position < s.keys;
      if (any && valid->data) any = *valid->rows<const bool>(head / s.heads_per_row, 0, position).data;
      all_lanes = any;
      if (any && mask) {
        const Seen seen(mask + j * mask_stride, at.n);
        any = seen.any;
        all_lanes = seen.all;
      }
      return any;
    };
    bool ignored;
    while (from < to && !look(from, ignored)) from++;
    while (from < to && !look(to - 1, ignored)) to--;
    block.n = to - from;
    block.all_seen = true;
    bool every_lane = true;
    for (int64_t j = 0; j < block.n; j++) {
      block.seen[j] = look(from + j, all[j]);
      block.positions[j] = std::clamp<int64_t>(table[from + j] + at.window * tile.key_advance, 0, s.keys - 1);
      block.all_seen &= block.seen[j];
      every_lane &= all[j] || !block.seen[j];
    }
    block.step = block.n > 1 ? block.positions[1] - block.positions[0] : 1;
    for (int64_t j = 2; j < block.n; j++)
      if (block.positions[j] - block.positions[j - 1] != block.step) block.step = 0;
    block.mask = every_lane || !mask ? nullptr : mask + from * mask_stride;
    block.mask_stride = mask_stride;
    return block.n > 0;
  }

  // Rows of a tensor at the block's keys: in place where tiles can read them so, else copied, with zeros up to a tile's
  Rows<const T> load_keys(Block<T>& to, const Address& from, int64_t width) const {
    if constexpr (std::is_same_v<S, T>)
      if (block.step && block.n % 8 == 0 && width == to.ld)
        return {from.rows<const T>(head, 0, block.positions[0]).data, from.l * block.step};
    for (int64_t j = 0; j < block.n; j++)
      to.copy_row(to.data + j * to.ld, from.rows<const S>(head, 0, block.positions[j]).data, width);
    std::memset(to.data + block.n * to.ld, 0, (round_up(block.n, 8) - block.n) * to.ld * sizeof(T));
    return {to.data, to.ld};
  }

  // Products [keys, lanes] of rows of keys and transposed rows of lanes
  void multiply(Block<T>& out, Rows<const T> rows, const Block<T>& by, int64_t width) const {
    X::product(out.data, out.ld, round_up(block.n, 8), lanes, rows.data, rows.stride, 1, by.data, by.ld, width, true);
  }

  // out [lanes, width] += of weights [keys, lanes] and rows of keys
  static void add_up(Block<T>& out, int64_t n, const Block<T>& weights, Rows<const T> rows, int64_t keys) {
    X::product(out.data, out.ld, round_up(n, 8), out.ld, weights.data, 1, weights.ld, rows.data, rows.stride, keys,
               false);
  }

  // The scores of pairs that do not count become minus infinity
  void hide(const Lanes& at) {
    if (block.all_seen && !block.mask) return;
    for (int64_t j = 0; j < block.n; j++) {
      T* row = weights.data + j * weights.ld;
      if (!block.seen[j]) {
        std::fill(row, row + lanes, LOWEST);
      } else if (block.mask) {
        const bool* mask = block.mask + j * block.mask_stride;
        for (int64_t i = 0; i < at.n; i++) row[i] = mask[i] ? row[i] : LOWEST;
      }
    }
  }

  // Visit the blocks of keys of a window whose pairs count, with their scores in `weights`
  template <typename Visit>
  void visit_keys(const Lanes& at, Visit visit) {
    for (int64_t j = 0; j < at.tile.keys; j += BLOCK_KEYS) {
      if (!find_keys(at, j, std::min(j + BLOCK_KEYS, at.tile.keys))) continue;
      const auto rows = load_keys(keys, *k, s.width);
      multiply(weights, rows, transposed, s.width);
      hide(at);
      visit(rows);
    }
  }

  // -- forward: out [Bh, G, N, E] and lse [Bh, G, N] ----------------------------------------------------------------

  T row_max[MAX_LANES] = {}, total[MAX_LANES] = {}, rescale[MAX_LANES] = {};

  // Scores become weights relative to the largest of each lane; returns whether that changed in any
  bool weigh() {
    bool changed = false;
    for (int64_t i = 0; i < lanes; i += W) {
      const T* column = weights.data + i;
      const Vec before = X::load(row_max + i);
      Vec largest[4] = {before, before, before, before};
      int64_t j = 0;
      for (; j + 4 <= block.n; j += 4)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++) {
          const Vec x = X::load(column + (j + u) * weights.ld);
          largest[u] = x > largest[u] ? x : largest[u];
        }
      for (; j < block.n; j++) {
        const Vec x = X::load(column + j * weights.ld);
        largest[0] = x > largest[0] ? x : largest[0];
      }
#pragma GCC unroll 4
      for (int u = 1; u < 4; u++) largest[0] = largest[u] > largest[0] ? largest[u] : largest[0];
      X::store(row_max + i, largest[0]);
      for (int u = 0; u < W; u++) changed |= largest[0][u] != before[u];
      const Vec reference = largest[0] == LOWEST ? Vec{} : largest[0];  // a lane that sees no key yet
      const Vec factor = power_of_two(before - reference);
      X::store(rescale + i, factor);
      Vec sum = X::load(total + i) * factor;
      for (j = 0; j < block.n; j++) {
        T* at = weights.data + j * weights.ld + i;
        const Vec weight = power_of_two(X::load(at) - reference);
        X::store(at, weight);
        sum += weight;
      }
      X::store(total + i, sum);
    }
    return changed;
  }

  void attend(const Address& out, const Address& lse, const Lanes& at, int64_t new_head) {
    start(at, new_head);
    load_lanes<T>(sums, out, at, s.values, 1);
    for (int64_t i = 0; i < lanes; i++) {
      row_max[i] = i < at.n ? *lse.rows<T>(head, at.head(i), at.position(i)).data * LOG2_E : LOWEST;
      total[i] = row_max[i] == LOWEST ? 0 : 1;
    }
    visit_keys(at, [&](Rows<const T>) {
      if (weigh())
        for (int64_t i = 0; i < at.n; i++) {
          T* row = sums.data + i * sums.ld;
          for (int64_t e = 0; e < sums.ld && rescale[i] != 1; e += W) X::store(row + e, X::load(row + e) * rescale[i]);
        }
      add_up(sums, at.n, weights, load_keys(values, *v, s.values), block.n);
    });
    for (int64_t i = 0; i < at.n; i++) {
      if (total[i] == 0) continue;  // it has not seen any key
      T *row = sums.data + i * sums.ld, *to = out.rows<T>(head, at.head(i), at.position(i)).data;
      const T factor = 1 / total[i];
      for (int64_t e = 0; e < s.values; e++) to[e] = row[e] * factor;
      *lse.rows<T>(head, at.head(i), at.position(i)).data = (row_max[i] + std::log2(total[i])) / LOG2_E;
    }
  }

  // -- backward: gradients by the scores from the output's and the log-sum-exps --------------------------------------

  // Adds to grad_q [Bh, G, N, D], and to those by keys and values [Bh parts, M, D or E], all numbers of T.
  // t: grad, out, lse, grad_q, grad_k, grad_v
  void differentiate(const Address* t, const Lanes& at, int64_t new_head, int64_t item,
                     GradientBlocks<T>& b) {
    start(at, new_head);
    load_lanes<S>(b.grad, t[0], at, s.values, 1);
    load_lanes<S>(sums, t[1], at, s.values, 1);
    // ln 2 is the derivative of a power of two
    X::transpose(b.transposed.data, b.transposed.ld, b.grad.data, b.grad.ld, lanes, b.grad.ld);
    for (int64_t e = 0; e < s.values; e++)
      for (int64_t i = 0; i < lanes; i += W) {
        T* x = b.transposed.data + e * b.transposed.ld + i;
        X::store(x, X::load(x) * (1 / LOG2_E));
      }
    T *lse = row_max, *delta = total;
    std::fill(lse, lse + lanes, T(0));
    std::fill(delta, delta + lanes, T(0));
    for (int64_t i = 0; i < at.n; i++) {
      lse[i] = *t[2].rows<T>(head, at.head(i), at.position(i)).data * LOG2_E;
      delta[i] = X::dot(b.grad.data + i * b.grad.ld, sums.data + i * sums.ld, sums.ld) * (1 / LOG2_E);
    }
    std::memset(b.grad_q.data, 0, Block<T>::pad(lanes) * b.grad_q.ld * sizeof(T));
    visit_keys(at, [&](Rows<const T> rows) {
      multiply(b.grad_weights, load_keys(values, *v, s.values), b.transposed, s.values);
      for (int64_t j = 0; j < block.n; j++)
        for (int64_t i = 0; i < lanes; i += W) {
          T *weight = weights.data + j * weights.ld + i, *grad = b.grad_weights.data + j * b.grad_weights.ld + i;
          const Vec x = power_of_two(X::load(weight) - X::load(lse + i));
          X::store(weight, x);
          X::store(grad, x * (X::load(grad) - X::load(delta + i)));
        }
      add_to_keys(t[5], item, weights, b.grad, b.added, s.values);
      add_to_keys(t[4], item, b.grad_weights, queries, b.added, s.width);
      add_up(b.grad_q, at.n, b.grad_weights, rows, block.n);
    });
    for (int64_t i = 0; i < at.n; i++) {
      const T* row = b.grad_q.data + i * b.grad_q.ld;
      T* to = t[3].rows<T>(head, at.head(i), at.position(i)).data;
      for (int64_t d = 0; d < s.width; d++) to[d] += row[d] * scale;
    }
  }

  // Add products of weights [keys, lanes] and rows of lanes to rows at the block's keys
  void add_to_keys(const Address& to, int64_t item, const Block<T>& weights, const Block<T>& rows, Block<T>& added,
                   int64_t width) const {
    const auto multiply_into = [&](Rows<T> out, bool clear) {
      X::product(out.data, out.stride, round_up(block.n, 8), rows.ld, weights.data, weights.ld, 1, rows.data, rows.ld,
                 lanes, clear);
    };
    if (block.step && block.n % 8 == 0 && width == rows.ld) {
      multiply_into({to.rows<T>(item, 0, block.positions[0]).data, to.l * block.step}, false);
      return;
    }
    multiply_into({added.data, added.ld}, true);
    for (int64_t j = 0; j < block.n; j++) {
      T* sum = to.rows<T>(item, 0, block.positions[j]).data;
      for (int64_t d = 0; d < width && block.seen[j]; d++) sum[d] += added.data[j * added.ld + d];
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
template <typename Count, typename MakeWorker>
void visit_tiles(const TileSizes& s, int64_t threads, Count count_items, MakeWorker make_worker) {
  std::vector<std::unique_ptr<decltype(make_worker())>> workers(threads);
  for (int64_t t = 0; t < s.tiles; t++) {
    const int64_t items = count_items(t);
    std::atomic<int64_t> next{0};
    run_together(std::min(threads, items), [&](int64_t i) {
      if (!workers[i]) workers[i] = std::make_unique<decltype(make_worker())>(make_worker());
      for (int64_t item = next++; item < items; item = next++) (*workers[i])(t, item);
    });
  }
}

template <typename T, typename S>
void attend(const Address* t, const Tile* tiles, const TileSizes& s, double scale, int64_t threads) {
  const auto count_chunks = [&](int64_t i) { return (tiles[i].rows * s.group + MAX_LANES - 1) / MAX_LANES; };
  visit_tiles(
      s, limit_threads(threads, count_products(s, tiles)),
      [&](int64_t i) { return s.heads * tiles[i].count * count_chunks(i); },
      [&] {
        return [&, kernel = std::make_shared<TileKernel<T, S>>(t, s, scale)](int64_t i, int64_t item) {
          const int64_t chunks = count_chunks(i), first = item % chunks * MAX_LANES, window = item / chunks;
          const Lanes at{tiles[i], window % tiles[i].count, s.group, first,
                         std::min(MAX_LANES, tiles[i].rows * s.group - first)};
          kernel->attend(t[4], t[5], at, window / tiles[i].count);
        };
      });
}

template <typename T, typename S>
void backward(const Address* t, const Tile* tiles, const TileSizes& s, double scale, int64_t threads) {
  const auto count_chunks = [&](int64_t i) { return (tiles[i].rows * s.group + MAX_LANES - 1) / MAX_LANES; };
  visit_tiles(
      s, limit_threads(threads, count_products(s, tiles)), [&](int64_t) { return s.heads * s.parts; },
      [&] {
        struct Worker {
          TileKernel<T, S> kernel;
          GradientBlocks<T> blocks;
        };
        auto worker = std::make_shared<Worker>(Worker{TileKernel<T, S>(t, s, scale), GradientBlocks<T>(s)});
        return [&, worker](int64_t i, int64_t item) {
          const int64_t chunks = count_chunks(i), n = tiles[i].count * chunks, part = item % s.parts;
          for (int64_t c = n * part / s.parts; c < n * (part + 1) / s.parts; c++) {
            const int64_t first = c % chunks * MAX_LANES;
            const Lanes at{tiles[i], c / chunks, s.group, first, std::min(MAX_LANES, tiles[i].rows * s.group - first)};
            worker->kernel.differentiate(t + 4, at, item / s.parts, item, worker->blocks);
          }
        };
      });
}

}  // namespace

// Tensors: q [Bh, G, N, D], k [Bh, M, D], v [Bh, M, E], valid [B, M], and out, lse, or those of `differentiate`
#define EXPORT(NAME, T, S)                                                                                         \
  extern "C" void attend_##NAME(const Address* tensors, const Tile* tiles, const TileSizes* sizes, double scale,   \
                                int64_t threads) {                                                                 \
    attend<T, S>(tensors, tiles, *sizes, scale, threads);                                                          \
  }                                                                                                                \
  extern "C" void backward_##NAME(const Address* tensors, const Tile* tiles, const TileSizes* sizes, double scale, \
                                  int64_t threads) {                                                               \
    backward<T, S>(tensors, tiles, *sizes, scale, threads);                                                        \
  }
EXPORT(float32, float, float)
EXPORT(float64, double, double)
EXPORT(bfloat16, float, BFloat16)
EXPORT(float16, float, Float16)
