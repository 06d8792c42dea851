// A few query rows over a long cache: softmax(q k^T) v in one pass over keys and values, on the CPU.
//
// A block of keys is turned in registers, so that scores are a product whose vectors run along the keys; weights are kept
// relative to a running maximum. What comes next is asked for early: the pass is as fast as the memory. Long caches of
// few heads are cut into parts for the threads. Nothing here knows of torch: decode.py passes addresses and strides.

#include <cmath>
#include <limits>
#include <numeric>

#include "registers.h"

namespace {

constexpr int64_t KEYS = 64;    // keys a block: with a row's width they fit the first cache
constexpr int64_t PART = 2048;  // keys that a thread is worth, at least

struct Sizes {
  int64_t batch, heads, rows, keys, width, values;
};

template <typename T>
struct Cache {  // keys or values [B, Hkv, M, width] by strides
  const T* data;
  int64_t b, h, m;
};

// e^x for x <= 0, in place
inline void exponentials(float* x, int64_t n) {
  typedef Maths<float> X;
  typedef int32_t Bits __attribute__((vector_size(BYTES)));
  constexpr float ROUND = 12582912.f;  // 1.5 2^23: what is added to it loses its fraction
  for (int64_t i = 0; i < n; i += X::W) {
    X::Vec a = X::load(x + i);
    a = a < -87.f ? X::Vec{} - 87.f : a;
    const X::Vec shifted = a * 1.44269504f + ROUND, whole = shifted - ROUND;
    const X::Vec f = (a * 1.44269504f - whole) + a * 1.92596299e-8f;  // what of x log2(e) comes after the point
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

template <typename T, int S = Maths<T>::W / 2>
T largest(typename Maths<T>::Vec x) {
  if constexpr (S == 0) {
    return x[0];
  } else {
    const auto turned = Maths<T>::template turn<S>(x);
    return largest<T, S / 2>(x > turned ? x : turned);
  }
}

template <typename T>
T largest(const T* row) {
  typedef Maths<T> X;
  typename X::Vec most = X::load(row);
  for (int64_t i = X::W; i < KEYS; i += X::W) {
    const typename X::Vec x = X::load(row + i);
    most = x > most ? x : most;
  }
  return largest<T>(most);
}

// Rows of queries [R, D] over the keys [from, to) of one head: sums [R, E] of weighted values, relative to the largest
// score `top` of each row; `total`: a vector for each row,
// whose numbers sum to its weights' sum
template <typename T>
void part(const Sizes& s, const T* q, Rows<const T> k, Rows<const T> v, int64_t from, int64_t to, Block<T>& sums,
          T* top, T* total) {
  typedef Maths<T> X;
  const int64_t tall = up(s.rows, 4);
  Block<T> mine(s.rows, s.width), keys(KEYS, s.width), turned(s.width, KEYS), values(KEYS, s.values),
      weights(s.rows, KEYS);
  for (int64_t r = 0; r < s.rows; r++) std::memcpy(mine.data + r * mine.ld, q + r * s.width, s.width * sizeof(T));
  std::fill(top, top + s.rows, -std::numeric_limits<T>::infinity());
  std::fill(total, total + s.rows * X::W, T(0));
  for (int64_t j = from; j < to; j += KEYS) {
    const int64_t n = std::min(KEYS, to - j), next = j + 2 * KEYS <= to ? j + KEYS : 0;
    auto block = keys.take({k.data + j * k.stride, k.stride}, n, KEYS, s.width);
    X::transpose(turned.data, turned.ld, block.data, block.stride, KEYS, keys.ld);
    X::template product<ALL, true>(
        weights.data, weights.ld, tall, KEYS, mine.data, mine.ld, 1, turned.data, turned.ld, s.width, true,
        {next && k.stride == s.width ? k.data + next * k.stride : nullptr, KEYS});
    for (int64_t r = 0; r < s.rows; r++) {
      T* row = weights.data + r * weights.ld;
      std::fill(row + n, row + KEYS, -std::numeric_limits<T>::infinity());
      const T larger = std::max(top[r], largest(row));
      for (int64_t i = 0; i < KEYS; i += X::W) X::store(row + i, X::load(row + i) - larger);
      exponentials(row, KEYS);
      std::fill(row + n, row + KEYS, T(0));
      if (larger != top[r]) {
        const T fade = std::exp(top[r] - larger);
        T* sum = sums.data + r * sums.ld;
        for (int64_t i = 0; i < sums.ld; i += X::W) X::store(sum + i, X::load(sum + i) * fade);
        X::store(total + r * X::W, X::load(total + r * X::W) * fade);
        top[r] = larger;
      }
      typename X::Vec sum = X::load(total + r * X::W);
      for (int64_t i = 0; i < KEYS; i += X::W) sum += X::load(row + i);
      X::store(total + r * X::W, sum);
    }
    Rows<const T> chosen{v.data + j * v.stride, v.stride};
    if (s.values != sums.ld) chosen = values.take(chosen, n, KEYS, s.values);
    X::template product<ALL, true>(
        sums.data, sums.ld, tall, sums.ld, weights.data, weights.ld, 1, chosen.data, chosen.stride, n, false,
        {next ? v.data + next * v.stride : nullptr, v.stride});
  }
}

template <typename T>
void attend(const T* q, Cache<T> k, Cache<T> v, T* out, const Sizes& s, int64_t threads) {
  const int64_t all = s.batch * s.heads;
  const int64_t cuts = std::max<int64_t>(1, std::min((threads + all - 1) / all, s.keys / PART));
  struct Found {
    Block<T> sums;
    std::vector<T> top, total;
    explicit Found(const Sizes& s) : sums(s.rows, s.values), top(s.rows), total(s.rows * Maths<T>::W) {}
    T weight(int64_t r) const {
      auto first = total.begin() + r * Maths<T>::W;
      return std::accumulate(first, first + Maths<T>::W, T(0));
    }
  };
  std::vector<std::unique_ptr<Found>> found(all * cuts);
  each(all * cuts, threads, [&](int64_t item) {
    const int64_t head = item / cuts, cut = item % cuts, b = head / s.heads, h = head % s.heads;
    const int64_t step = up((s.keys + cuts - 1) / cuts, KEYS), from = cut * step, to = std::min(s.keys, from + step);
    auto& f = *(found[item] = std::make_unique<Found>(s));
    part<T>(s, q + head * s.rows * s.width, {k.data + b * k.b + h * k.h, k.m}, {v.data + b * v.b + h * v.h, v.m}, from,
            to, f.sums, f.top.data(), f.total.data());
  });
  for (int64_t head = 0; head < all; head++)
    for (int64_t r = 0; r < s.rows; r++) {  // parts become one by their largest scores
      Found& first = *found[head * cuts];
      T *sum = first.sums.data + r * first.sums.ld, weight = first.weight(r);
      for (int64_t cut = 1; cut < cuts; cut++) {
        Found& other = *found[head * cuts + cut];
        const T top = std::max(first.top[r], other.top[r]);
        const T mine = std::exp(first.top[r] - top), theirs = std::exp(other.top[r] - top);
        const T* more = other.sums.data + r * other.sums.ld;
        for (int64_t i = 0; i < s.values; i++) sum[i] = sum[i] * mine + more[i] * theirs;
        weight = weight * mine + other.weight(r) * theirs;
        first.top[r] = top;
      }
      T* to = out + (head * s.rows + r) * s.values;
      for (int64_t i = 0; i < s.values; i++) to[i] = sum[i] / weight;
    }
}

}  // namespace

// q [B, Hkv, R, D], scaled, and out [B, Hkv, R, E] lie dense; strides: of batch, head and position of k, then of v
#define EXPORT(T)                                                                                                  \
  extern "C" void decode_##T(const T* q, const T* k, const T* v, T* out, const int64_t* at, const Sizes* s,        \
                             int64_t threads) {                                                                    \
    attend<T>(q, {k, at[0], at[1], at[2]}, {v, at[3], at[4], at[5]}, out, *s, threads);                            \
  }
EXPORT(float)
EXPORT(double)
