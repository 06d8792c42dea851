// Bidirectional linear attention on the CPU, in one pass over the keys and one over the queries, forward and backward.
//
//   S = Y^T V,  z = sum of Y's rows;    out = X S / d,  d = X z      X = phi(Q) [N, F], Y = phi(K) [M, F], V [M, E]
//   backward, with T = grad / d and t = -(grad . out) / d:    grad S = X^T T,  grad z = X^T t
//   grad X = T S^T + t z^T,    grad V = Y grad S,    grad Y = V grad S^T + grad z
//
// Features of some rows at a time stay in the first cache between their exponentials and their products, and are made
// again in the backward pass. Numbers of half precision are widened where they are loaded, and gradients are rounded
// where they are stored; sums, and the rows that the backward pass reads, are float32. cpp_sums.py passes addresses and
// strides.

#include "features.h"

namespace {

constexpr int64_t ROWS = 64;    // at a time: a multiple of the tallest tile
constexpr int64_t BLOCKS = 64;  // of rows, whose sums are added up before they are added to all others

struct PassSizes {  // parts: of the rows of a head, for the threads
  int64_t heads, group, length, features, values, map, divides, parts;
};

// sums += the rows of x, weighted if there are weights
inline void add_rows(float* sums, const Block<float>& x, int64_t n, const float* weights) {
  for (int64_t d = 0; d < x.ld; d += X::W) {
    Vec sum{};
    for (int64_t i = 0; i < n; i++) sum += X::load(x.data + i * x.ld + d) * (weights ? weights[i] : 1.f);
    X::store(sums + d, X::load(sums + d) + sum);
  }
}

// Sums S and z over many rows. Those of some blocks are added up first: sums in steps of equal length round least.
struct LongSums {
  Rows<float> kv, z;
  int64_t features, values, blocks = 0;
  Block<float> recent_kv, recent_z;

  LongSums(Rows<float> kv, Rows<float> z, const PassSizes& s)
      : kv(kv), z(z), features(s.features), values(s.values), recent_kv(s.features, s.values), recent_z(1, s.features) {}

  // Add x^T v and the rows of x, weighted if there are weights, of n rows
  void add(const Block<float>& x, Rows<const float> v, int64_t n, bool with_z, const float* weights) {
    X::product(recent_kv.data, recent_kv.ld, x.ld, recent_kv.ld, x.data, 1, x.ld, v.data, v.stride, n, false);
    if (with_z) add_rows(recent_z.data, x, n, weights);
    if (++blocks % BLOCKS == 0) flush();
  }

  void flush() {
    for (int64_t f = 0; f < features; f++) {
      float *to = kv.data + f * kv.stride, *from = recent_kv.data + f * recent_kv.ld;
      for (int64_t e = 0; e < recent_kv.ld; e += X::W) X::store(to + e, X::load(to + e) + X::load(from + e));
      std::memset(from, 0, recent_kv.ld * sizeof(float));
    }
    for (int64_t f = 0; f < recent_z.ld; f += X::W)
      X::store(z.data + f, X::load(z.data + f) + X::load(recent_z.data + f));
    std::memset(recent_z.data, 0, recent_z.ld * sizeof(float));
  }
};

// A part of the rows of a head, some at a time: visit(first row, rows, rows padded for tiles)
template <typename Visit>
void visit_rows(const PassSizes& s, int64_t part, Visit visit) {
  const int64_t step = round_up((s.length + s.parts - 1) / s.parts, ROWS), to = std::min(s.length, (part + 1) * step);
  for (int64_t i = part * step; i < to; i += ROWS) {
    const int64_t n = std::min(ROWS, to - i);
    visit(i, n, round_up(n, BLOCK));
  }
}

template <typename Work>
void for_each_part(const PassSizes& s, int64_t threads, Work work) {
  threads = limit_threads(threads, s.heads * s.group * s.length * s.features * s.values);
  parallel_for(s.heads * s.parts, threads, [&](int64_t item) { work(item / s.parts, item % s.parts, item); });
}

// t: k, v, valid, and for each part S and z, padded and zero
template <typename S>
void sum_keys(const Address* t, const PassSizes& s, int64_t threads) {
  for_each_part(s, threads, [&](int64_t head, int64_t part, int64_t item) {
    Block<float> y(ROWS, s.features), values(ROWS, s.values);
    LongSums sums(t[3].rows<float>(item, 0, 0), t[4].rows<float>(item, 0, 0), s);
    visit_rows(s, part, [&](int64_t i, int64_t n, int64_t) {
      load_features(y, t[0].rows<const S>(head, 0, i), n, n, s.features, s.map,
                    t[2].rows_or_none<const bool>(head, 0, i));
      const auto v = values.load_rows(t[1].rows<const S>(head, 0, i), n, n, s.values);
      sums.add(y, v, n, true, nullptr);
    });
    sums.flush();
  });
}

// t: q, S, z, out, and the sums of weights [Bh, G, N]
template <typename S>
void read_sums(const Address* t, const PassSizes& s, int64_t threads) {
  for_each_part(s, threads, [&](int64_t head, int64_t part, int64_t) {
    Block<float> x(ROWS, s.features), buffer(ROWS, s.values);
    const Rows<const float> kv = t[1].rows<const float>(head, 0, 0), z = t[2].rows<const float>(head, 0, 0);
    for (int64_t g = 0; g < s.group; g++)
      visit_rows(s, part, [&](int64_t i, int64_t n, int64_t padded) {
        load_features(x, t[0].rows<const S>(head, g, i), n, padded, s.features, s.map, {});
        const auto target = t[3].rows<float>(head, g, i), out = buffer.output_rows(target, n, padded, s.values);
        X::product(out.data, out.stride, padded, buffer.ld, x.data, x.ld, 1, kv.data, kv.stride, x.ld, true);
        float* totals = t[4].rows<float>(head, g, i).data;
        for (int64_t r = 0; r < n && s.divides; r++) {
          totals[r] = X::dot(x.data + r * x.ld, z.data, x.ld);
          divide(out.data + r * out.stride, buffer.ld, totals[r]);
        }
        if (out.data == buffer.data) buffer.copy_back(target, n, s.values);
      });
  });
}

// t: q, S^T, z, grad, out, totals, grad_q, and for each part grad S and grad z, padded and zero
template <typename S>
void read_backward(const Address* t, const PassSizes& s, int64_t threads) {
  for_each_part(s, threads, [&](int64_t head, int64_t part, int64_t item) {
    Block<float> x(ROWS, s.features), grad_x(ROWS, s.features);
    DividedGrads load_grads(t + 3, head, ROWS, s.values, s.divides);
    const Rows<const float> transposed = t[1].rows<const float>(head, 0, 0), z = t[2].rows<const float>(head, 0, 0);
    LongSums sums(t[7].rows<float>(item, 0, 0), t[8].rows<float>(item, 0, 0), s);
    for (int64_t g = 0; g < s.group; g++)
      visit_rows(s, part, [&](int64_t i, int64_t n, int64_t padded) {
        load_features(x, t[0].rows<const S>(head, g, i), n, padded, s.features, s.map, {});
        const Rows<const float> grads = load_grads(g, i, n, padded);
        const auto& by_totals = load_grads.by_totals;
        sums.add(x, grads, n, s.divides, by_totals.data());
        X::product(grad_x.data, x.ld, padded, x.ld, grads.data, grads.stride, 1, transposed.data, transposed.stride,
                   Block<float>::pad(s.values), true);
        for (int64_t r = 0; r < n && s.divides; r++)
          X::add(grad_x.data + r * x.ld, grad_x.data + r * x.ld, by_totals[r], z.data, x.ld);
        store_by_rows<S>(t[6].rows<S>(head, g, i), grad_x, {x.data, x.ld}, n, s.features, s.map);
      });
    sums.flush();
  });
}

// t: k, v, valid, grad S, grad S^T, grad z, grad_k, grad_v
template <typename S>
void sum_backward(const Address* t, const PassSizes& s, int64_t threads) {
  for_each_part(s, threads, [&](int64_t head, int64_t part, int64_t) {
    Block<float> y(ROWS, s.features), values(ROWS, s.values), grad_y(ROWS, s.features), grad_v(ROWS, s.values);
    const Rows<const float> grad_kv = t[3].rows<const float>(head, 0, 0), grad_z = t[5].rows<const float>(head, 0, 0),
                            transposed = t[4].rows<const float>(head, 0, 0);
    visit_rows(s, part, [&](int64_t i, int64_t n, int64_t padded) {
      const auto valid = t[2].rows_or_none<const bool>(head, 0, i);
      load_features(y, t[0].rows<const S>(head, 0, i), n, padded, s.features, s.map, valid);
      const auto v = values.load_rows(t[1].rows<const S>(head, 0, i), n, padded, s.values);
      X::product(grad_v.data, grad_v.ld, padded, grad_v.ld, y.data, y.ld, 1, grad_kv.data, grad_kv.stride, y.ld, true);
      const auto target_v = t[7].rows<S>(head, 0, i);
      for (int64_t r = 0; r < n; r++)
        store_row(target_v.data + r * target_v.stride, grad_v.data + r * grad_v.ld, s.values);
      X::product(grad_y.data, y.ld, padded, y.ld, v.data, v.stride, 1, transposed.data, transposed.stride, values.ld,
                 true);
      for (int64_t r = 0; r < n; r++) X::add(grad_y.data + r * y.ld, grad_y.data + r * y.ld, 1, grad_z.data, y.ld);
      store_by_rows<S>(t[6].rows<S>(head, 0, i), grad_y, {y.data, y.ld}, n, s.features, s.map);
    });
  });
}

}  // namespace

#define EXPORT_AS(NAME, DTYPE, S)                                                                   \
  extern "C" void NAME##_##DTYPE(const Address* tensors, const PassSizes* sizes, int64_t threads) { \
    NAME<S>(tensors, *sizes, threads);                                                              \
  }
#define EXPORT(NAME)                  \
  EXPORT_AS(NAME, float32, float)     \
  EXPORT_AS(NAME, bfloat16, BFloat16) \
  EXPORT_AS(NAME, float16, Float16)
EXPORT(sum_keys)
EXPORT(read_sums)
EXPORT(read_backward)
EXPORT(sum_backward)
