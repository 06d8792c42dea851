// A stretch of causal linear attention, chunk by chunk: what chunks.py does for keys without weights, on the CPU.
//
//   O = tril(X Y^T) V + X S,  S' = S + Y^T V     X [L, F] for each query head, Y [L, F], V [L, E], S [F, E]
//
// S stays in the nearest cache while a chunk's rows pass through it. All products are made of one tile that is held in
// registers. Vectors are those of the compiler (GCC from 12 on, Clang), so that one source serves AVX-512, AVX2 and
// others. Nothing here depends on torch: cpp_scan.py passes addresses and strides.

#include "registers.h"

namespace {

struct ScanSizes {
  int64_t heads, group, length, features, values, chunk;
  int64_t threads(int64_t most) const { return limit_threads(most, heads * group * length * features * values); }
};

// tril(a b^T) of a chunk, from b^T
template <typename T>
void causal_products(Block<T>& pairs, Rows<const T> a, const Block<T>& b, int64_t width, int64_t rows) {
  for (int64_t i = 0; i < rows; i += BLOCK) {
    T* tile = pairs.data + i * pairs.ld;
    Simd<T>::product(tile, pairs.ld, BLOCK, i + BLOCK, a.data + i * a.stride, a.stride, 1, b.data, b.ld, width, true);
    for (int64_t r = 0; r < BLOCK; r++, tile += pairs.ld) std::fill(tile + i + r + 1, tile + i + BLOCK, T(0));
  }
}

// out = tril(a b^T) c + a S, S += b^T c. This is `attend`, with the sums of weights to be written to totals_out. With
// a = grad_top, b = v, c = y it is `backward_queries`, with the gradients by these sums in grad_totals: a further
// column of a against ones in b. z: the sum of the features of all keys so far.
template <typename T>
void scan_forward(const ScanSizes& s, int64_t head, Tensor<const T> a_, Tensor<const T> b_, Tensor<const T> c_,
                  int64_t inner, int64_t outer, Rows<T> state, T* z, Tensor<T> out_, Tensor<T> totals_out,
                  Tensor<const T> grad_totals) {
  typedef Simd<T> X;
  const int64_t max_rows = round_up(s.chunk, BLOCK), sums_width = totals_out.data ? inner : outer;
  Block<T> a_buffer(max_rows, inner), b_buffer(max_rows, inner), c_buffer(max_rows, outer), out_buffer(max_rows, outer),
      transposed(inner, max_rows);
  Block<T> pairs(max_rows, max_rows), sums(max_rows, sums_width), last(1, sums_width);
  std::memcpy(last.data, z, sums_width * sizeof(T));
  for (int64_t start = 0; start < s.length; start += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.length - start), padded_rows = round_up(rows, BLOCK);
    auto b = b_buffer.load_rows(b_.rows(head, 0, start), rows, padded_rows, inner);
    auto c = c_buffer.load_rows(c_.rows(head, 0, start), rows, padded_rows, outer);
    X::transpose(transposed.data, transposed.ld, b.data, b.stride, padded_rows, b_buffer.ld);
    auto summed = totals_out.data ? b : c;
    for (int64_t i = 0; i < rows; i++) {  // sums within the chunk first: they round less
      T* tile = sums.data + i * sums.ld;
      if (i == 0) std::memcpy(tile, summed.data, sums.ld * sizeof(T));
      else X::add(tile, tile - sums.ld, 1, summed.data + i * summed.stride, sums.ld);
    }
    for (int64_t i = 0; i < rows; i++) X::add(sums.data + i * sums.ld, sums.data + i * sums.ld, 1, last.data, sums.ld);
    for (int64_t g = 0; g < s.group; g++) {
      auto a = a_buffer.load_rows(a_.rows(head, g, start), rows, padded_rows, inner);
      auto out = out_buffer.output_rows(out_.rows(head, g, start), rows, padded_rows, outer);
      causal_products(pairs, a, transposed, b_buffer.ld, padded_rows);
      X::template product<BELOW>(out.data, out.stride, padded_rows, c_buffer.ld, pairs.data, pairs.ld, 1, c.data,
                                 c.stride, padded_rows, true);
      for (int64_t i = 0; i < rows; i++) {
        const T* sum = sums.data + i * sums.ld;
        if (totals_out.data) *totals_out.rows(head, g, start + i).data = X::dot(a.data + i * a.stride, sum, sums.ld);
        else if (grad_totals.data)
          X::add(out.data + i * out.stride, out.data + i * out.stride, *grad_totals.rows(head, g, start + i).data, sum,
                 sums.ld);
      }
      for (int64_t n = 0; n < c_buffer.ld; n += TILE_VECTORS * X::W)
        for (int64_t k = 0; k < b_buffer.ld; k += SLAB_ROWS) {
          const int64_t columns = std::min<int64_t>(TILE_VECTORS * X::W, c_buffer.ld - n),
                        slab = std::min(SLAB_ROWS, b_buffer.ld - k);
          T* tile = state.data + k * state.stride + n;
          X::product(out.data + n, out.stride, padded_rows, columns, a.data + k, a.stride, 1, tile, state.stride, slab,
                     false);
          if (g + 1 == s.group)
            X::product(tile, state.stride, slab, columns, b.data + k, 1, b.stride, c.data + n, c.stride, padded_rows,
                       false);
        }
      if (out.data == out_buffer.data) out_buffer.copy_back(out_.rows(head, g, start), rows, outer);
    }
    std::memcpy(last.data, sums.data + (rows - 1) * sums.ld, sums.ld * sizeof(T));
  }
  std::memcpy(z, last.data, sums_width * sizeof(T));
}

// The gradients by keys and values, last chunk first: with s for the gradient by the state after a chunk,
// grad_v = y s + tril(x y^T)^T top, grad_y = v s^T + tril(top v^T + total)^T x, s += x^T top.
template <typename T>
void scan_backward(const ScanSizes& s, int64_t head, Tensor<const T> x_, Tensor<const T> y_, Tensor<const T> v_,
                   Tensor<const T> top_, Tensor<const T> total, Rows<T> state, T* z, Tensor<T> grad_y_,
                   Tensor<T> grad_v_) {
  typedef Simd<T> X;
  const int64_t max_rows = round_up(s.chunk, BLOCK), F = s.features, E = s.values;
  Block<T> x_buffer(max_rows, F), y_buffer(max_rows, F), v_buffer(max_rows, E), top_buffer(max_rows, E),
      grad_y_buffer(max_rows, F), grad_v_buffer(max_rows, E);
  Block<T> y_transposed(F, max_rows), v_transposed(E, max_rows), pairs(max_rows, max_rows),
      piece(TILE_VECTORS * X::W, SLAB_ROWS), sum(1, F), last(1, F);
  std::memcpy(last.data, z, F * sizeof(T));
  for (int64_t start = (s.length - 1) / s.chunk * s.chunk; start >= 0; start -= s.chunk) {
    const int64_t rows = std::min(s.chunk, s.length - start), padded_rows = round_up(rows, BLOCK);
    auto y = y_buffer.load_rows(y_.rows(head, 0, start), rows, padded_rows, F);
    auto v = v_buffer.load_rows(v_.rows(head, 0, start), rows, padded_rows, E);
    auto grad_y = grad_y_buffer.output_rows(grad_y_.rows(head, 0, start), rows, padded_rows, F);
    auto grad_v = grad_v_buffer.output_rows(grad_v_.rows(head, 0, start), rows, padded_rows, E);
    X::transpose(y_transposed.data, y_transposed.ld, y.data, y.stride, padded_rows, y_buffer.ld);
    X::transpose(v_transposed.data, v_transposed.ld, v.data, v.stride, padded_rows, v_buffer.ld);
    std::memcpy(sum.data, last.data, last.ld * sizeof(T));
    for (int64_t g = 0; g < s.group; g++) {
      auto x = x_buffer.load_rows(x_.rows(head, g, start), rows, padded_rows, F);
      auto top = top_buffer.load_rows(top_.rows(head, g, start), rows, padded_rows, E);
      causal_products(pairs, x, y_transposed, y_buffer.ld, padded_rows);
      X::template product<ABOVE>(grad_v.data, grad_v.stride, padded_rows, v_buffer.ld, pairs.data, 1, pairs.ld,
                                 top.data, top.stride, padded_rows, g == 0);
      causal_products(pairs, top, v_transposed, v_buffer.ld, padded_rows);
      X::template product<ABOVE>(grad_y.data, grad_y.stride, padded_rows, y_buffer.ld, pairs.data, 1, pairs.ld, x.data,
                                 x.stride, padded_rows, g == 0);
      for (int64_t i = rows - 1; i >= 0; i--) {  // of later groups, only their contribution
        if (total.data) X::add(sum.data, sum.data, *total.rows(head, g, start + i).data, x.data + i * x.stride, sum.ld);
        if (total.data || g == 0)
          X::add(grad_y.data + i * grad_y.stride, grad_y.data + i * grad_y.stride, 1, sum.data, sum.ld);
      }
      if (g == 0) std::memset(last.data, 0, last.ld * sizeof(T));
      X::add(last.data, last.data, 1, sum.data, sum.ld);
      std::memset(sum.data, 0, sum.ld * sizeof(T));
      for (int64_t n = 0; n < v_buffer.ld; n += TILE_VECTORS * X::W)
        for (int64_t k = 0; k < y_buffer.ld; k += SLAB_ROWS) {
          const int64_t columns = std::min<int64_t>(TILE_VECTORS * X::W, v_buffer.ld - n),
                        slab = std::min(SLAB_ROWS, y_buffer.ld - k);
          T* tile = state.data + k * state.stride + n;
          if (g == 0) {
            X::product(grad_v.data + n, grad_v.stride, padded_rows, columns, y.data + k, y.stride, 1, tile,
                       state.stride, slab, false);
            X::transpose(piece.data, piece.ld, tile, state.stride, slab, columns);
            X::product(grad_y.data + k, grad_y.stride, padded_rows, slab, v.data + n, v.stride, 1, piece.data, piece.ld,
                       columns, false);
          }
          X::product(tile, state.stride, slab, columns, x.data + k, 1, x.stride, top.data + n, top.stride, padded_rows,
                     false);
        }
    }
    if (grad_y.data == grad_y_buffer.data) grad_y_buffer.copy_back(grad_y_.rows(head, 0, start), rows, F);
    if (grad_v.data == grad_v_buffer.data) grad_v_buffer.copy_back(grad_v_.rows(head, 0, start), rows, E);
  }
  std::memcpy(z, last.data, F * sizeof(T));
}

template <typename T>
void attend(const Tensor<T>* t, const ScanSizes& s, int64_t threads) {  // x, y, v, top, total
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    scan_forward<T>(s, head, t[2].input(), t[3].input(), t[4].input(), s.features, s.values, t[0].rows(head, 0, 0),
                    t[1].rows(head, 0, 0).data, t[5], t[6], {});
  });
}

template <typename T>
void backward_queries(const Tensor<T>* t, const ScanSizes& s, int64_t threads) {  // top, total, y, v, grad_x
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    scan_forward<T>(s, head, t[2].input(), t[5].input(), t[4].input(), s.values, s.features, t[0].rows(head, 0, 0),
                    t[1].rows(head, 0, 0).data, t[6], {}, t[3].input());
  });
}

template <typename T>
void backward_keys(const Tensor<T>* t, const ScanSizes& s, int64_t threads) {  // x, y, v, top, total, grad_y, grad_v
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    scan_backward<T>(s, head, t[2].input(), t[3].input(), t[4].input(), t[5].input(), t[6].input(),
                     t[0].rows(head, 0, 0), t[1].rows(head, 0, 0).data, t[7], t[8]);
  });
}

}  // namespace

// t: the state, padded, in `backward_queries` transposed, its z, and the tensors above (null for missing totals)
#define EXPORT(name)                                                                                    \
  extern "C" void name##_float32(const Tensor<float>* t, const ScanSizes* sizes, int64_t threads) {       \
    name<float>(t, *sizes, threads);                                                                    \
  }                                                                                                     \
  extern "C" void name##_float64(const Tensor<double>* t, const ScanSizes* sizes, int64_t threads) {     \
    name<double>(t, *sizes, threads);                                                                   \
  }
EXPORT(attend)
EXPORT(backward_queries)
EXPORT(backward_keys)
