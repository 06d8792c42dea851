// The parts of scan.cpp and sums.cpp, in part of tiles.cpp: rows of heads that are read and written, some at a time, and their features.
#pragma once

#include "registers.h"
#include "threads.h"

namespace {

typedef Simd<float> X;
typedef X::Vec Vec;

struct Address {  // of a tensor [Bh, G, L, ..], with its strides
  void* data;
  int64_t bh, g, l;
  template <typename T>
  Rows<T> rows(int64_t head, int64_t group, int64_t i) const {
    return {static_cast<T*>(data) + head * bh + group * g + i * l, l};
  }
  template <typename T>
  Rows<T> rows_or_none(int64_t head, int64_t group, int64_t i) const {
    return data ? rows<T>(head, group, i) : Rows<T>{};
  }
};

// Rows of a head that pass through a buffer, some at a time
template <typename T>
struct HeadRows {
  const Address tensor;
  const int64_t head, width;
  Block<T> buffer;
  HeadRows(const Address& tensor, int64_t head, int64_t max_rows, int64_t width)
      : tensor(tensor), head(head), width(width), buffer(round_up(max_rows, BLOCK), width) {}
};

// Rows that a kernel reads, as numbers of T
template <typename T, typename S = T>
struct Operand : HeadRows<T> {
  using HeadRows<T>::HeadRows;
  Rows<const T> operator()(int64_t group, int64_t start, int64_t rows, int64_t padded) {
    return this->buffer.load_rows(this->tensor.template rows<const S>(this->head, group, start), rows, padded,
                                  this->width);
  }
};

// Where a kernel computes rows: in place, or to be stored
template <typename T>
struct Target : HeadRows<T> {
  using HeadRows<T>::HeadRows;
  Rows<T> operator()(int64_t group, int64_t start, int64_t rows, int64_t padded) {
    return this->buffer.output_rows(find(group, start), rows, padded, this->width);
  }
  void store(int64_t group, int64_t start, int64_t rows, Rows<T> out) const {
    if (out.data == this->buffer.data) this->buffer.copy_back(find(group, start), rows, this->width);
  }
  Rows<T> find(int64_t group, int64_t start) const {
    return this->tensor.template rows<T>(this->head, group, start);
  }
};

enum Map { RELU, ELU_PLUS_ONE };

// e^x for x <= 0, also where it is subnormal
inline Vec exponential(Vec x) {
  constexpr float ROUND = 12582912.f;  // 1.5 2^23: numbers added to it lose their fractions
  const Vec a = x < -104.f ? Vec{} - 104.f : x, shifted = a * 1.44269504f + ROUND, whole = shifted - ROUND;
  // the fraction of x log2(e), from x less whole multiples of log(2), whose larger part has few digits
  const Vec f = (a - whole * .693359375f + whole * 2.12194440e-4f) * 1.44269504f;
  const Vec p = power_of_fraction(f);
  // 2^whole in two factors, of which each is a normal number
  typedef int32_t Integers __attribute__((vector_size(VECTOR_BYTES)));
  const Integers n = (Integers)((Bits)shifted - (Bits)(Vec{} + ROUND)), half = n >> 1;
  return p * (Vec)((half + 127) << 23) * (Vec)((n - half + 127) << 23);
}

// Features of n rows, zero for hidden ones, and zero in the padding
template <typename S>
void load_features(Block<float>& x, Rows<const S> rows, int64_t n, int64_t padded, int64_t width, int64_t map,
                   Rows<const bool> valid) {
  for (int64_t i = 0; i < padded; i++) {
    float* to = x.data + i * x.ld;
    if (i >= n || (valid.data && !valid.data[i * valid.stride])) {
      std::memset(to, 0, x.ld * sizeof(float));
      continue;
    }
    Block<float>::copy_row(to, rows.data + i * rows.stride, width);
    for (int64_t d = 0; d < width; d += X::W) {
      const Vec a = X::load(to + d);
      if (map == RELU) X::store(to + d, a < 0 ? Vec{} : a);
      else X::store(to + d, a > 0 ? a + 1.f : a == a ? exponential(a) : a);
    }
    std::fill(to + width, to + x.ld, 0.f);
  }
}

// The slope of a feature, from its value
inline Vec slope(Vec feature, int64_t map) {
  const Vec one = Vec{} + 1.f;
  return map == RELU ? (feature <= 0 ? Vec{} : one) : feature > one ? one : feature;
}

// A row, rounded to the nearest numbers of its type
inline void store_row(float* to, const float* row, int64_t width) { std::memcpy(to, row, width * sizeof(float)); }
inline void store_row(BFloat16* to, const float* row, int64_t width) {
  for (int64_t i = 0; i < width; i++) {
    uint32_t bits;
    std::memcpy(&bits, row + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to[i].bits = row[i] == row[i] ? rounded : 0x7fc0;
  }
}
inline void store_row(Float16* to, const float* row, int64_t width) {
  for (int64_t i = 0; i < width; i++) {
    const _Float16 rounded = static_cast<_Float16>(row[i]);
    std::memcpy(to + i, &rounded, sizeof rounded);
  }
}

// A row divided by its sum of weights, or by 1 if that is zero
inline void divide(float* row, int64_t width, float total) {
  constexpr float SMALLEST = 1e-30f;  // from which on a reciprocal neither overflows nor loses digits
  if (total == 0) return;
  const Vec divisor = Vec{} + total;
  if (total > SMALLEST) {
    const Vec scale = 1.f / divisor;
    for (int64_t i = 0; i < width; i += X::W) X::store(row + i, X::load(row + i) * scale);
  } else {
    for (int64_t i = 0; i < width; i += X::W) X::store(row + i, X::load(row + i) / divisor);
  }
}

// Features of queries or keys of a head, some at a time
template <typename S>
struct Features : HeadRows<float> {
  const Address valid;
  const int64_t map;
  Features(const Address& tensor, const Address& valid, int64_t head, int64_t max_rows, int64_t width, int64_t map)
      : HeadRows<float>(tensor, head, max_rows, width), valid(valid), map(map) {}
  Rows<const float> operator()(int64_t group, int64_t start, int64_t rows, int64_t padded) {
    load_features(buffer, tensor.rows<const S>(head, group, start), rows, padded, width, map,
                  valid.rows_or_none<const bool>(head, 0, start));
    return {buffer.data, buffer.ld};
  }
};

// Gradients of a head's outputs, some rows at a time, divided by the rows' sums of weights, and those by these sums in
// by_totals. t: grad, out, totals
struct DividedGrads {
  const Address* t;
  const int64_t head, width;
  const bool divides;
  Block<float> buffer, out_buffer;
  std::vector<float> by_totals;
  DividedGrads(const Address* t, int64_t head, int64_t max_rows, int64_t width, bool divides)
      : t(t), head(head), width(width), divides(divides), buffer(round_up(max_rows, BLOCK), width),
        out_buffer(round_up(max_rows, BLOCK), width), by_totals(max_rows) {}
  Rows<const float> operator()(int64_t group, int64_t start, int64_t rows, int64_t padded) {
    const auto grad = t[0].rows<const float>(head, group, start);
    for (int64_t i = 0; i < rows; i++)
      Block<float>::copy_row(buffer.data + i * buffer.ld, grad.data + i * grad.stride, width);
    std::memset(buffer.data + rows * buffer.ld, 0, (padded - rows) * buffer.ld * sizeof(float));
    if (divides) {
      const auto out = out_buffer.load_rows(t[1].rows<const float>(head, group, start), rows, rows, width);
      const auto totals = t[2].rows<const float>(head, group, start);
      for (int64_t i = 0; i < rows; i++) {
        float* row = buffer.data + i * buffer.ld;
        const float total = totals.data[i * totals.stride];
        divide(row, buffer.ld, total);
        by_totals[i] = total == 0 ? 0 : -X::dot(row, out.data + i * out.stride, buffer.ld);
      }
    }
    return {buffer.data, buffer.ld};
  }
};

// Store gradients by n rows, from those by their features, which are overwritten
template <typename S>
void store_by_rows(Rows<S> to, Block<float>& grads, Rows<const float> features, int64_t n, int64_t width, int64_t map) {
  for (int64_t i = 0; i < n; i++) {
    float* row = grads.data + i * grads.ld;
    for (int64_t d = 0; d < grads.ld; d += X::W)
      X::store(row + d, X::load(row + d) * slope(X::load(features.data + i * features.stride + d), map));
    store_row(to.data + i * to.stride, row, width);
  }
}

}  // namespace
