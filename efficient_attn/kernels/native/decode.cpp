// A few query rows over a long cache, on the CPU: softmax(q k^T) v in one pass over keys and values.
//
//   m' = max(m, max_j s_j),  l <- e^(m - m') l + sum_j e^(s_j - m'),  o <- e^(m - m') o + sum_j e^(s_j - m') v_j
//
// for one block of keys after another (an online softmax). Numbers of half precision are widened where they are loaded,
// and sums are float32. For few rows, scores are sums along the keys' width: the accumulators of as many pairs as a
// vector has numbers are added up and transposed at once, and the next values and keys are prefetched meanwhile. For
// many rows, blocks of keys are transposed. Long caches of few heads are split into parts for the threads. Nothing here
// depends on torch: decode.py passes addresses and strides.

#include <cmath>
#include <limits>
#include <numeric>

#include "registers.h"
#include "threads.h"

namespace {

constexpr int64_t BLOCK_KEYS = 64;       // of a block, at most: with a row's width they fit the first cache
constexpr int64_t FEW_ROWS = 4;          // up to so many, scores are computed from the keys as they are,
constexpr int64_t FEW_ROWS_BLOCK = 16;   // in smaller blocks: prefetched values are still in the first cache when used
constexpr int64_t MIN_PART_KEYS = 2048;  // fewer are not worth a thread
constexpr int64_t CACHE_LINE = 64;

struct DecodeSizes {
  int64_t batch, heads, rows, keys, width, values;
};

template <typename S>
struct Cache {  // keys or values [B, Hkv, M, width] by strides
  const S* data;
  int64_t b, h, m;
  Rows<const S> head(int64_t batch, int64_t head) const { return {data + batch * b + head * h, m}; }
};

// e^x for x <= 0, in place
inline void exponentials(float* x, int64_t n) {
  typedef Simd<float> X;
  constexpr float ROUND = 12582912.f;  // 1.5 2^23: numbers added to it lose their fractions
  for (int64_t i = 0; i < n; i += X::W) {
    X::Vec a = X::load(x + i);
    a = a < -87.f ? X::Vec{} - 87.f : a;
    const X::Vec shifted = a * 1.44269504f + ROUND, whole = shifted - ROUND;
    const X::Vec f = (a * 1.44269504f - whole) + a * 1.92596299e-8f;  // the fraction of x log2(e)
    const X::Vec p = power_of_fraction(f);
    X::store(x + i, (X::Vec)((Bits)p + ((Bits)shifted << 23)));
  }
}

inline void exponentials(double* x, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] = std::exp(x[i]);
}

template <typename T, int S = Simd<T>::W / 2>
T largest(typename Simd<T>::Vec x) {
  if constexpr (S == 0) {
    return x[0];
  } else {
    const auto rotated = Simd<T>::template rotate<S>(x);
    return largest<T, S / 2>(x > rotated ? x : rotated);
  }
}

template <typename T>
T largest(const T* row, int64_t n) {
  typedef Simd<T> X;
  typename X::Vec result = X::load(row);
  for (int64_t i = X::W; i < n; i += X::W) {
    const typename X::Vec x = X::load(row + i);
    result = x > result ? x : result;
  }
  return largest<T>(result);
}

template <typename S>
inline void prefetch(const S* row, int64_t width) {
  for (int64_t i = 0; i < width * int64_t(sizeof(S)); i += CACHE_LINE)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + i);
}

// The scores of R rows of queries for the first n keys, up to a whole vector of them; ahead: memory to prefetch, a row
// for each key
template <int R, typename T, typename S>
void score(T* weights, int64_t ldw, const T* q, int64_t ldq, Rows<const S> k, int64_t n, int64_t width,
           Rows<const S> ahead, int64_t ahead_width) {
  typedef Simd<T> X;
  typedef typename X::Vec Vec;
  constexpr int W = X::W, KEYS = W / R;  // keys of a tile, whose pairs have one accumulator each: r * KEYS + key
  for (int64_t j = 0; j < n; j += W) {
    Vec rows[R];
#pragma GCC unroll 4
    for (int t = 0; t < R; t++) {
      const S* keys[KEYS];  // keys beyond the last are the last
#pragma GCC unroll 16
      for (int i = 0; i < KEYS; i++) {
        const int64_t key = std::min(j + t * KEYS + i, n - 1);
        keys[i] = k.data + key * k.stride;
        prefetch(ahead.data + key * ahead.stride, ahead_width);
      }
      Vec sums[W] = {};
      for (int64_t d = 0; d < width; d += W) {
        Vec key[KEYS];
#pragma GCC unroll 16
        for (int i = 0; i < KEYS; i++) key[i] = X::load(keys[i] + d);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
          const Vec x = X::load(q + r * ldq + d);
#pragma GCC unroll 16
          for (int i = 0; i < KEYS; i++) sums[r * KEYS + i] += x * key[i];
        }
      }
      rows[t] = X::add_up(sums);
    }
    X::template exchange<KEYS, R>(rows);  // number r * KEYS + key of vector t becomes t * KEYS + key of vector r
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) X::store(weights + r * ldw + j, rows[r]);
  }
}

// out [R, E] += weights [R, n] v [n, E]
template <int R, typename T, typename S>
void add_values(T* out, int64_t ldo, const T* weights, int64_t ldw, Rows<const S> v, int64_t n, int64_t width) {
  typedef Simd<T> X;
  constexpr int N = std::min(TILE_VECTORS * 4 / R, 8);
  int64_t e = 0;
  for (; e + N * X::W <= width; e += N * X::W)
    X::template tile<R, N>(out + e, ldo, weights, ldw, 1, v.data + e, v.stride, n, false);
  for (; e < width; e += X::W)
    X::template tile<R, 1>(out + e, ldo, weights, ldw, 1, v.data + e, v.stride, n, false);
}

template <typename T>
struct PartialSoftmax {
  Block<T> sums;                  // [R, E]: of values by their weights, relative to the largest score of each row
  std::vector<T> row_max, total;  // total: a vector for each row, whose numbers add up to the sum of its weights
  explicit PartialSoftmax(const DecodeSizes& s)
      : sums(s.rows, s.values),
        row_max(s.rows, -std::numeric_limits<T>::infinity()),
        total(s.rows * Simd<T>::W) {}
  T weight(int64_t r) const {
    auto first = total.begin() + r * Simd<T>::W;
    return std::accumulate(first, first + Simd<T>::W, T(0));
  }
};

// One row's scores of a block become weights, added to its total; its sums are scaled to its new largest score. valid:
// which of the first n keys the row sees, or null for all
template <typename T>
void weigh(T* row, int64_t r, int64_t n, const bool* valid, PartialSoftmax<T>& partial) {
  typedef Simd<T> X;
  const int64_t padded = round_up(n, X::W);
  const auto fill_hidden = [&](T value) {
    if (valid)
      for (int64_t i = 0; i < n; i++) row[i] = valid[i] ? row[i] : value;
    std::fill(row + n, row + padded, value);
  };
  fill_hidden(-std::numeric_limits<T>::infinity());
  const T new_max = std::max(partial.row_max[r], largest(row, padded));
  for (int64_t i = 0; i < padded; i += X::W) X::store(row + i, X::load(row + i) - new_max);
  exponentials(row, padded);
  fill_hidden(0);
  T* total = partial.total.data() + r * X::W;
  typename X::Vec sum = X::load(total);
  if (new_max != partial.row_max[r]) {
    const T rescale = std::exp(partial.row_max[r] - new_max);
    T* sums = partial.sums.data + r * partial.sums.ld;
    for (int64_t i = 0; i < partial.sums.ld; i += X::W) X::store(sums + i, X::load(sums + i) * rescale);
    sum *= rescale;
    partial.row_max[r] = new_max;
  }
  for (int64_t i = 0; i < padded; i += X::W) sum += X::load(row + i);
  X::store(total, sum);
}

template <typename S>
struct KeyBlock {  // up to BLOCK_KEYS keys and values, of widths that are multiples of a vector's
  Rows<const S> keys, values, next_keys;
  int64_t n, width, value_width;
  const bool* valid;
};

template <int R, typename T, typename S>
void add_block(const Block<T>& queries, Block<T>& weights, const KeyBlock<S>& block, int64_t r,
               int64_t n_rows, PartialSoftmax<T>& partial) {
  score<R>(weights.data, weights.ld, queries.data + r * queries.ld, queries.ld, block.keys, block.n, block.width,
           block.values, block.value_width);
  for (int64_t i = 0; i < std::min<int64_t>(R, n_rows - r); i++)
    weigh(weights.data + i * weights.ld, r + i, block.n, block.valid, partial);
  if (block.next_keys.data)
    for (int64_t j = 0; j < FEW_ROWS_BLOCK; j++)
      prefetch(block.next_keys.data + j * block.next_keys.stride, block.width);
  add_values<R>(partial.sums.data + r * partial.sums.ld, partial.sums.ld, weights.data, weights.ld, block.values,
                block.n, block.value_width);
}

// Few rows, four, two or one at a time
template <typename T, typename S>
void add_block(const Block<T>& queries, Block<T>& weights, const KeyBlock<S>& block, PartialSoftmax<T>& partial) {
  constexpr int R = std::min<int>(FEW_ROWS, Simd<T>::W);
  const int64_t n_rows = partial.row_max.size();
  int64_t r = 0;
  for (; r + R / 2 < n_rows; r += R) add_block<R>(queries, weights, block, r, n_rows, partial);
  if (r + 1 < n_rows) add_block<2>(queries, weights, block, r, n_rows, partial);
  else if (r < n_rows) add_block<1>(queries, weights, block, r, n_rows, partial);
}

// Many rows: the keys are transposed once, and scores are a product whose vectors run along the keys
template <typename T>
void add_block(const Block<T>& queries, Block<T>& weights, Block<T>& transposed, const KeyBlock<T>& block,
               PartialSoftmax<T>& partial) {
  typedef Simd<T> X;
  const int64_t n_rows = partial.row_max.size(), rows = round_up(n_rows, 8), padded = round_up(block.n, X::W);
  X::transpose(transposed.data, transposed.ld, block.keys.data, block.keys.stride, padded, block.width);
  X::product(weights.data, weights.ld, rows, padded, queries.data, queries.ld, 1, transposed.data, transposed.ld,
             block.width, true);
  for (int64_t r = 0; r < n_rows; r++) weigh(weights.data + r * weights.ld, r, block.n, block.valid, partial);
  X::product(partial.sums.data, partial.sums.ld, rows, block.value_width, weights.data, weights.ld, 1,
             block.values.data, block.values.stride, block.n, false);
}

// Rows of queries [R, D] over the keys [from, to) of one head
template <typename T, typename S>
void attend_part(const DecodeSizes& s, const T* q, Rows<const S> k, Rows<const S> v, const bool* valid, int64_t from,
                 int64_t to, PartialSoftmax<T>& partial) {
  constexpr int W = Simd<T>::W;
  const bool has_few_rows = s.rows <= FEW_ROWS, copies = !has_few_rows || s.width % W || s.values % W;
  const int64_t step = has_few_rows ? FEW_ROWS_BLOCK : BLOCK_KEYS, copied = copies ? step : 0;
  Block<T> queries(s.rows, s.width), weights(s.rows, BLOCK_KEYS);
  Block<T> keys(copied, s.width), values(copied, s.values), transposed(has_few_rows ? 0 : s.width, BLOCK_KEYS);
  for (int64_t r = 0; r < s.rows; r++) queries.copy_row(queries.data + r * queries.ld, q + r * s.width, s.width);
  for (int64_t j = from; j < to; j += step) {
    const int64_t n = std::min(step, to - j), padded = round_up(n, W);
    const bool* block_valid = valid ? valid + j : nullptr;
    if (valid && std::none_of(block_valid, block_valid + n, [](bool x) { return x; })) continue;
    const Rows<const S> block_keys{k.data + j * k.stride, k.stride}, block_values{v.data + j * v.stride, v.stride};
    if (copies) {
      const auto loaded_keys = keys.load_rows(block_keys, n, padded, s.width);
      const auto loaded_values = values.load_rows(block_values, n, n, s.values);
      const KeyBlock<T> block{loaded_keys, loaded_values, {}, n, keys.ld, values.ld, block_valid};
      if (has_few_rows) add_block(queries, weights, block, partial);
      else add_block(queries, weights, transposed, block, partial);
    } else {
      const Rows<const S> next{j + 2 * step <= to ? block_keys.data + step * k.stride : nullptr, k.stride};
      add_block(queries, weights, KeyBlock<S>{block_keys, block_values, next, n, s.width, s.values, block_valid},
                partial);
    }
  }
}

// The parts of a head, added to the first by their largest scores
template <typename T>
void merge(PartialSoftmax<T>& first, const PartialSoftmax<T>& other, const DecodeSizes& s) {
  for (int64_t r = 0; r < s.rows; r++) {
    const T row_max = std::max(first.row_max[r], other.row_max[r]);
    if (other.row_max[r] == -std::numeric_limits<T>::infinity()) continue;  // it saw no key
    const T first_scale = std::exp(first.row_max[r] - row_max), other_scale = std::exp(other.row_max[r] - row_max);
    T* sum = first.sums.data + r * first.sums.ld;
    const T* other_sum = other.sums.data + r * other.sums.ld;
    for (int64_t i = 0; i < s.values; i++) sum[i] = sum[i] * first_scale + other_sum[i] * other_scale;
    for (int64_t i = 0; i < Simd<T>::W; i++) {
      T& total = first.total[r * Simd<T>::W + i];
      total = total * first_scale + other.total[r * Simd<T>::W + i] * other_scale;
    }
    first.row_max[r] = row_max;
  }
}

template <typename T, typename S>
void attend(const T* q, Cache<S> k, Cache<S> v, const bool* valid, T* out, const DecodeSizes& s, int64_t threads) {
  const int64_t n_heads = s.batch * s.heads;
  const int64_t n_parts = std::max<int64_t>(1, std::min((threads + n_heads - 1) / n_heads, s.keys / MIN_PART_KEYS));
  std::vector<std::unique_ptr<PartialSoftmax<T>>> partials(n_heads * n_parts);
  parallel_for(n_heads * n_parts, threads, [&](int64_t item) {
    const int64_t head = item / n_parts, b = head / s.heads, h = head % s.heads;
    const int64_t step = round_up((s.keys + n_parts - 1) / n_parts, BLOCK_KEYS), from = item % n_parts * step;
    partials[item] = std::make_unique<PartialSoftmax<T>>(s);
    attend_part(s, q + head * s.rows * s.width, k.head(b, h), v.head(b, h), valid ? valid + b * s.keys : nullptr, from,
                std::min(s.keys, from + step), *partials[item]);
  });
  for (int64_t head = 0; head < n_heads; head++) {
    PartialSoftmax<T>& first = *partials[head * n_parts];
    for (int64_t part = 1; part < n_parts; part++) merge(first, *partials[head * n_parts + part], s);
    for (int64_t r = 0; r < s.rows; r++) {
      const T weight = first.weight(r), scale = weight > 0 ? 1 / weight : 0;  // zeros for a row that sees no key
      for (int64_t i = 0; i < s.values; i++)
        out[(head * s.rows + r) * s.values + i] = first.sums.data[r * first.sums.ld + i] * scale;
    }
  }
}

}  // namespace

// q [B, Hkv, R, D], scaled, and out [B, Hkv, R, E] are contiguous; strides: of batch, head and position of k, then of
// v; valid [B, M]: which keys are seen, or null for all
#define EXPORT(NAME, T, S)                                                                                      \
  extern "C" void decode_##NAME(const T* q, const S* k, const S* v, const bool* valid, T* out,                  \
                                const int64_t* at, const DecodeSizes* s, int64_t threads) {                     \
    attend(q, Cache<S>{k, at[0], at[1], at[2]}, Cache<S>{v, at[3], at[4], at[5]}, valid, out, *s, threads);     \
  }
EXPORT(float32, float, float)
EXPORT(float64, double, double)
EXPORT(bfloat16, float, BFloat16)
EXPORT(float16, float, Float16)
