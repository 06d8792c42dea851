// A few query rows over a long cache, on the CPU: softmax(q k^T) v in one pass over keys and values.
//
//   m' = max(m, max_j s_j),  l <- e^(m - m') l + sum_j e^(s_j - m'),  o <- e^(m - m') o + sum_j e^(s_j - m') v_j
//
// for one block of keys after another (an online softmax). A block of keys is transposed in registers, so that scores
// are a product whose vectors run along the keys. The next block is prefetched: the pass is as fast as the memory. Long
// caches of few heads are split into parts for the threads. Nothing here depends on torch: decode.py passes addresses
// and strides.

#include <cmath>
#include <limits>
#include <numeric>

#include "registers.h"

namespace {

constexpr int64_t BLOCK_KEYS = 64;       // of a block: with a row's width they fit the first cache
constexpr int64_t MIN_PART_KEYS = 2048;  // fewer are not worth a thread

struct DecodeSizes {
  int64_t batch, heads, rows, keys, width, values;
};

template <typename T>
struct Cache {  // keys or values [B, Hkv, M, width] by strides
  const T* data;
  int64_t b, h, m;
};

// e^x for x <= 0, in place
inline void exponentials(float* x, int64_t n) {
  typedef Simd<float> X;
  typedef int32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  constexpr float ROUND = 12582912.f;  // 1.5 2^23: numbers added to it lose their fractions
  for (int64_t i = 0; i < n; i += X::W) {
    X::Vec a = X::load(x + i);
    a = a < -87.f ? X::Vec{} - 87.f : a;
    const X::Vec shifted = a * 1.44269504f + ROUND, whole = shifted - ROUND;
    const X::Vec f = (a * 1.44269504f - whole) + a * 1.92596299e-8f;  // the fraction of x log2(e)
    X::Vec p = f * 1.5403530e-4f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.f;
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
T largest(const T* row) {
  typedef Simd<T> X;
  typename X::Vec result = X::load(row);
  for (int64_t i = X::W; i < BLOCK_KEYS; i += X::W) {
    const typename X::Vec x = X::load(row + i);
    result = x > result ? x : result;
  }
  return largest<T>(result);
}

// Rows of queries [R, D] over the keys [from, to) of one head: sums [R, E] of values by their weights, relative to the
// largest score row_max of each row; total: a vector for each row, whose numbers add up to the sum of its weights
template <typename T>
void attend_part(const DecodeSizes& s, const T* q, Rows<const T> k, Rows<const T> v, int64_t from, int64_t to,
                 Block<T>& sums, T* row_max, T* total) {
  typedef Simd<T> X;
  const int64_t padded_rows = round_up(s.rows, 4);
  Block<T> queries(s.rows, s.width), keys(BLOCK_KEYS, s.width), keys_transposed(s.width, BLOCK_KEYS),
      values(BLOCK_KEYS, s.values), weights(s.rows, BLOCK_KEYS);
  for (int64_t r = 0; r < s.rows; r++) std::memcpy(queries.data + r * queries.ld, q + r * s.width, s.width * sizeof(T));
  std::fill(row_max, row_max + s.rows, -std::numeric_limits<T>::infinity());
  std::fill(total, total + s.rows * X::W, T(0));
  for (int64_t j = from; j < to; j += BLOCK_KEYS) {
    const int64_t n = std::min(BLOCK_KEYS, to - j), next = j + 2 * BLOCK_KEYS <= to ? j + BLOCK_KEYS : 0;
    auto block = keys.load_rows({k.data + j * k.stride, k.stride}, n, BLOCK_KEYS, s.width);
    X::transpose(keys_transposed.data, keys_transposed.ld, block.data, block.stride, BLOCK_KEYS, keys.ld);
    X::template product<ALL, true>(weights.data, weights.ld, padded_rows, BLOCK_KEYS, queries.data, queries.ld, 1,
                                   keys_transposed.data, keys_transposed.ld, s.width, true,
                                   {next && k.stride == s.width ? k.data + next * k.stride : nullptr, BLOCK_KEYS});
    for (int64_t r = 0; r < s.rows; r++) {
      T* row = weights.data + r * weights.ld;
      std::fill(row + n, row + BLOCK_KEYS, -std::numeric_limits<T>::infinity());
      const T new_max = std::max(row_max[r], largest(row));
      for (int64_t i = 0; i < BLOCK_KEYS; i += X::W) X::store(row + i, X::load(row + i) - new_max);
      exponentials(row, BLOCK_KEYS);
      std::fill(row + n, row + BLOCK_KEYS, T(0));
      if (new_max != row_max[r]) {
        const T rescale = std::exp(row_max[r] - new_max);
        T* sum = sums.data + r * sums.ld;
        for (int64_t i = 0; i < sums.ld; i += X::W) X::store(sum + i, X::load(sum + i) * rescale);
        X::store(total + r * X::W, X::load(total + r * X::W) * rescale);
        row_max[r] = new_max;
      }
      typename X::Vec sum = X::load(total + r * X::W);
      for (int64_t i = 0; i < BLOCK_KEYS; i += X::W) sum += X::load(row + i);
      X::store(total + r * X::W, sum);
    }
    Rows<const T> value_rows{v.data + j * v.stride, v.stride};
    if (s.values != sums.ld) value_rows = values.load_rows(value_rows, n, BLOCK_KEYS, s.values);
    X::template product<ALL, true>(sums.data, sums.ld, padded_rows, sums.ld, weights.data, weights.ld, 1,
                                   value_rows.data, value_rows.stride, n, false,
                                   {next ? v.data + next * v.stride : nullptr, v.stride});
  }
}

template <typename T>
void attend(const T* q, Cache<T> k, Cache<T> v, T* out, const DecodeSizes& s, int64_t threads) {
  const int64_t n_heads = s.batch * s.heads;
  const int64_t n_parts = std::max<int64_t>(1, std::min((threads + n_heads - 1) / n_heads, s.keys / MIN_PART_KEYS));
  struct PartialSoftmax {
    Block<T> sums;
    std::vector<T> row_max, total;
    explicit PartialSoftmax(const DecodeSizes& s)
        : sums(s.rows, s.values), row_max(s.rows), total(s.rows * Simd<T>::W) {}
    T weight(int64_t r) const {
      auto first = total.begin() + r * Simd<T>::W;
      return std::accumulate(first, first + Simd<T>::W, T(0));
    }
  };
  std::vector<std::unique_ptr<PartialSoftmax>> partials(n_heads * n_parts);
  parallel_for(n_heads * n_parts, threads, [&](int64_t item) {
    const int64_t head = item / n_parts, part_index = item % n_parts, b = head / s.heads, h = head % s.heads;
    const int64_t step = round_up((s.keys + n_parts - 1) / n_parts, BLOCK_KEYS), from = part_index * step,
                  to = std::min(s.keys, from + step);
    auto& partial = *(partials[item] = std::make_unique<PartialSoftmax>(s));
    attend_part<T>(s, q + head * s.rows * s.width, {k.data + b * k.b + h * k.h, k.m}, {v.data + b * v.b + h * v.h, v.m},
                   from, to, partial.sums, partial.row_max.data(), partial.total.data());
  });
  for (int64_t head = 0; head < n_heads; head++)
    for (int64_t r = 0; r < s.rows; r++) {  // merge the parts by their largest scores
      PartialSoftmax& first = *partials[head * n_parts];
      T *sum = first.sums.data + r * first.sums.ld, weight = first.weight(r);
      for (int64_t part_index = 1; part_index < n_parts; part_index++) {
        PartialSoftmax& other = *partials[head * n_parts + part_index];
        const T row_max = std::max(first.row_max[r], other.row_max[r]);
        const T first_scale = std::exp(first.row_max[r] - row_max), other_scale = std::exp(other.row_max[r] - row_max);
        const T* other_sum = other.sums.data + r * other.sums.ld;
        for (int64_t i = 0; i < s.values; i++) sum[i] = sum[i] * first_scale + other_sum[i] * other_scale;
        weight = weight * first_scale + other.weight(r) * other_scale;
        first.row_max[r] = row_max;
      }
      T* to = out + (head * s.rows + r) * s.values;
      for (int64_t i = 0; i < s.values; i++) to[i] = sum[i] / weight;
    }
}

}  // namespace

// q [B, Hkv, R, D], scaled, and out [B, Hkv, R, E] are contiguous; strides: of batch, head and position of k, then of v
#define EXPORT(T)                                                                                                 \
  extern "C" void decode_##T(const T* q, const T* k, const T* v, T* out, const int64_t* at, const DecodeSizes* s, \
                             int64_t threads) {                                                                   \
    attend<T>(q, {k, at[0], at[1], at[2]}, {v, at[3], at[4], at[5]}, out, *s, threads);                           \
  }
EXPORT(float)
EXPORT(double)
