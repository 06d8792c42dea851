// Softmax over the tiles of a pattern, on the CPU, forward and backward: windows of queries, each over its own keys.
//
//   m' = max(m, max_j s_j),  l <- 2^(m - m') l + sum_j 2^(s_j - m'),  o <- 2^(m - m') o + sum_j 2^(s_j - m') v_j
//
// with s = q k^T scale log2(e), for one block of keys after another, and continued by the next tile. Scores are made
// transposed: keys are rows and queries the lanes of vectors, so that keys and values are read where they are, and
// maxima and sums go down the lanes. Of a block, leading and trailing keys that no query sees are not computed. The
// backward pass makes the weights again, from the log-sum-exps. Half precision is widened where rows are loaded.
// cpp_tiles.py passes addresses, strides and tiles.

#include <limits>

#include "tiles.h"

namespace {

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

  const Address *q, *k, *v, *valid_keys;
  const TileSizes& s;
  const T scale;  // of scores, which are logarithms of base 2
  Block<T> queries, transposed, weights, keys, values, sums;
  KeyBlock block;
  int64_t head = 0, lanes = 0;  // lanes: a multiple of a vector's

  TileKernel(const Address* t, const TileSizes& s, double scale)
      : q(t), k(t + 1), v(t + 2), valid_keys(t + 3), s(s), scale(T(scale) * LOG2_E), queries(MAX_LANES, s.width),
        transposed(s.width, MAX_LANES), weights(BLOCK_KEYS, MAX_LANES), keys(BLOCK_KEYS, s.width),
        values(BLOCK_KEYS, s.values), sums(MAX_LANES, s.values) {}

  template <typename R>
  R* find(const Address& tensor, const Lanes& at, int64_t i) const {
    return tensor.rows<R>(head, at.head(i), at.position(i)).data;
  }

  // Rows of the lanes, zeros beyond the last
  template <typename R>
  void load_lanes(Block<T>& to, const Address& from, const Lanes& at, int64_t width, T factor) const {
    for (int64_t i = 0; i < at.n; i++) {
      T* row = to.data + i * to.ld;
      to.copy_row(row, find<const R>(from, at, i), width);
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
    const auto valid = valid_keys->rows_or_none<const bool>(head / s.heads_per_row, 0, 0);
    for (int64_t j = 0; j < at.tile.keys; j += BLOCK_KEYS) {
      if (!block.find(at, j, std::min(j + BLOCK_KEYS, at.tile.keys), s.keys, valid)) continue;
      const auto rows = load_keys(keys, *k, s.width);
      multiply(weights, rows, transposed, s.width);
      hide(at);
      visit(rows);
    }
  }

  // -- forward: out [Bh, G, N, E], largest and totals [Bh, G, N] -----------------------------------------------------

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

  // Adds to out, relative to the largest score of each row, and to total, the sums of its weights
  void attend(const Address& out, const Address& largest, const Address& totals, const Lanes& at, int64_t new_head) {
    start(at, new_head);
    load_lanes<T>(sums, out, at, s.values, 1);
    for (int64_t i = 0; i < lanes; i++) {
      row_max[i] = i < at.n ? *find<T>(largest, at, i) : LOWEST;
      total[i] = i < at.n ? *find<T>(totals, at, i) : 0;
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
      std::memcpy(find<T>(out, at, i), sums.data + i * sums.ld, s.values * sizeof(T));
      *find<T>(largest, at, i) = row_max[i];
      *find<T>(totals, at, i) = total[i];
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
      lse[i] = *find<T>(t[2], at, i) * LOG2_E;
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
      T* to = find<T>(t[3], at, i);
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

template <typename T, typename S>
void attend(const Address* t, const Tile* tiles, const TileSizes& s, double scale, int64_t threads) {
  visit_tiles(
      s, tiles, threads, [&](const Tile& tile) { return s.heads * tile.count_lanes(s.group); },
      [&] { return TileKernel<T, S>(t, s, scale); },
      [&](auto& kernel, const Tile& tile, int64_t item) {
        const int64_t n = tile.count_lanes(s.group);
        kernel.attend(t[4], t[5], t[6], Lanes(tile, s.group, item % n), item / n);
      });
}

template <typename T, typename S>
void backward(const Address* t, const Tile* tiles, const TileSizes& s, double scale, int64_t threads) {
  visit_tiles(
      s, tiles, threads, [&](const Tile&) { return s.heads * s.parts; },
      [&] { return std::pair(TileKernel<T, S>(t, s, scale), GradientBlocks<T>(s)); },
      [&](auto& worker, const Tile& tile, int64_t item) {
        const int64_t n = tile.count_lanes(s.group), part = item % s.parts;
        for (int64_t i = n * part / s.parts; i < n * (part + 1) / s.parts; i++)
          worker.first.differentiate(t + 4, Lanes(tile, s.group, i), item / s.parts, item, worker.second);
      });
}

}  // namespace

// Tensors: q [Bh, G, N, D], k [Bh, M, D], v [Bh, M, E], valid [B, M], and those of the function
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
