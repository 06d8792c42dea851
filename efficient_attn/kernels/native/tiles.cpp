// Softmax over the tiles of a pattern, on the CPU, forward and backward: windows of queries, each over its own keys.
//
//   m' = max(m, max_j s_j),  l <- 2^(m - m') l + sum_j 2^(s_j - m'),  o <- 2^(m - m') o + sum_j 2^(s_j - m') v_j
//
// with s = q k^T scale log2(e), for one block of keys after another, and continued by the next tile. Scores are made
// transposed: keys are rows and queries the lanes of vectors, so that keys and values are read where they are, and
// maxima and sums go down the lanes. Each granule of lanes computes the keys from the first to the last that it sees.
// The backward pass makes the weights again, from the log-sum-exps. Half precision is widened where rows are loaded.
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
      const R* source = find<const R>(from, at, i);
      if (is_far<R>(from, at.tile.step)) prefetch(source + at.tile.advance * from.l, width);
      to.copy_row(row, source, width);
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
  Rows<const T> load_keys(Block<T>& to, const Address& from, const Lanes& at, int64_t width) const {
    const bool far = is_far<S>(from, block.step);
    if constexpr (std::is_same_v<S, T>)
      if (block.step && !far && width == to.ld && block.reaches(round_up(block.n, 8), s.keys))
        return {from.rows<const T>(head, 0, block.positions[0]).data, from.l * block.step};
    for (int64_t j = 0; j < block.n; j++) {
      const S* row = from.rows<const S>(head, 0, block.positions[j]).data;
      if (far) prefetch(row + at.tile.key_advance * from.l, width);
      to.copy_row(to.data + j * to.ld, row, width);
    }
    std::memset(to.data + block.n * to.ld, 0, (round_up(block.n, 8) - block.n) * to.ld * sizeof(T));
    return {to.data, to.ld};
  }

  // Products [keys, lanes] of rows of keys and transposed rows of lanes
  void multiply(Block<T>& out, Rows<const T> rows, const Block<T>& by, int64_t width) const {
    for (const auto [lane, end, from, to] : block)
      X::product(out.data + from * out.ld + lane, out.ld, round_up(to - from, 8), std::min(end, lanes) - lane,
                 rows.data + from * rows.stride, rows.stride, 1, by.data + lane, by.ld, width, true);
  }

  // out [lanes, width] += of weights [keys, lanes] and rows of keys
  void add_up(Block<T>& out, const Block<T>& weights, Rows<const T> rows) const {
    for (const auto [lane, end, from, to] : block)
      X::product(out.data + lane * out.ld, out.ld, round_up(std::min(end, lanes) - lane, 8), out.ld,
                 weights.data + from * weights.ld + lane, 1, weights.ld, rows.data + from * rows.stride, rows.stride,
                 to - from, false);
  }

  // The scores of pairs that do not count become minus infinity
  void hide(const Lanes& at) {
    if (block.all_seen && !block.mask) return;
    for (const auto [lane, end, from, to] : block)
      for (int64_t j = from; j < to; j++) {
        T* row = weights.data + j * weights.ld;
        if (!block.seen[j]) {
          std::fill(row + lane, row + std::min(end, lanes), LOWEST);
        } else if (block.mask) {
          const bool* mask = block.mask + j * block.mask_stride;
          for (int64_t i = lane; i < std::min(end, lanes); i += W) hide_vector(row + i, mask + i, at.n - i);
        }
      }
  }

  // Visit the blocks of keys of a window whose pairs count, with their scores in `weights`
  template <typename Visit>
  void visit_keys(const Lanes& at, Visit visit) {
    const auto valid = valid_keys->rows_or_none<const bool>(head / s.heads_per_row, 0, 0);
    for (int64_t j = 0; j < at.tile.keys; j += BLOCK_KEYS) {
      if (!block.find(at, j, std::min(j + BLOCK_KEYS, at.tile.keys), s.keys, valid)) continue;
      const auto rows = load_keys(keys, *k, at, s.width);
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
    std::fill(rescale, rescale + lanes, T(1));
    for (const auto [lane, end, from, to] : block)
      for (int64_t i = lane; i < std::min(end, lanes); i += W) changed |= weigh_vector(i, from, to);
    return changed;
  }

  // The same for a vector of lanes, from i on, and a range of keys
  bool weigh_vector(int64_t i, int64_t from, int64_t to) {
    bool changed = false;
    const T* column = weights.data + i;
    const Vec before = X::load(row_max + i);
    Vec largest[4] = {before, before, before, before};
    int64_t j = from;
    for (; j + 4 <= to; j += 4)
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++) {
        const Vec x = X::load(column + (j + u) * weights.ld);
        largest[u] = x > largest[u] ? x : largest[u];
      }
    for (; j < to; j++) {
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
    for (j = from; j < to; j++) {
      T* at = weights.data + j * weights.ld + i;
      const Vec weight = power_of_two(X::load(at) - reference);
      X::store(at, weight);
      sum += weight;
    }
    X::store(total + i, sum);
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
      add_up(sums, weights, load_keys(values, *v, at, s.values));
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
      multiply(b.grad_weights, load_keys(values, *v, at, s.values), b.transposed, s.values);
      for (const auto [lane, end, from, to] : block)
        for (int64_t j = from; j < to; j++)
          for (int64_t i = lane; i < std::min(end, lanes); i += W) {
            T *weight = weights.data + j * weights.ld + i, *grad = b.grad_weights.data + j * b.grad_weights.ld + i;
            const Vec x = power_of_two(X::load(weight) - X::load(lse + i));
            X::store(weight, x);
            X::store(grad, x * (X::load(grad) - X::load(delta + i)));
          }
      add_to_keys(t[5], item, weights, b.grad, b.added, s.values);
      add_to_keys(t[4], item, b.grad_weights, queries, b.added, s.width);
      add_up(b.grad_q, b.grad_weights, rows);
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
    const auto multiply_into = [&](Rows<T> out) {
      for (const auto [lane, end, from, last] : block)
        X::product(out.data + from * out.stride, out.stride, round_up(last - from, 8), rows.ld,
                   weights.data + from * weights.ld + lane, weights.ld, 1, rows.data + lane * rows.ld, rows.ld,
                   std::min(end, lanes) - lane, false);
    };
    if (block.step && block.n % 8 == 0 && width == rows.ld) {
      multiply_into({to.rows<T>(item, 0, block.positions[0]).data, to.l * block.step});
      return;
    }
    std::memset(added.data, 0, round_up(block.n, 8) * added.ld * sizeof(T));
    multiply_into({added.data, added.ld});
    for (int64_t j = 0; j < block.n; j++) {
      T* sum = to.rows<T>(item, 0, block.positions[j]).data;
      for (int64_t d = 0; d < width && block.seen[j]; d++) sum[d] += added.data[j * added.ld + d];
    }
  }
};

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
