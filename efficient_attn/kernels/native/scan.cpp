// A stretch of causal linear attention, chunk by chunk: what chunks.py does for keys without weights, on the CPU.
//
//   O = tril(X Y^T) V + X S,  S' = S + Y^T V     X [L, F] for each query head, Y [L, F], V [L, E], S [F, E]
//
// S stays in the nearest cache while a chunk's rows pass through it. All products are made of one tile that is held in
// registers. Vectors are those of the compiler (GCC from 12 on, Clang), so that one source serves AVX-512, AVX2 and
// others. Nothing here depends on torch: cpp_scan.py passes addresses and strides.
//
// `attend` and its gradients take features, of any map. `attend_rows` and its gradients take queries and keys, make
// features of relu or elu + 1 in the cache, and divide: O / d, with d = X z. Gradients by O and d are T = grad / d and
// t = -(grad . out) / d, which are top and total of the former.

#include "features.h"

namespace {

struct ScanSizes {  // map, divides: of `attend_rows` and its gradients
  int64_t heads, group, length, features, values, chunk, map, divides;
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

// out = tril(a b^T) c + a S, S += b^T c. This is `attend`; with a = grad_top, b = v, c = y it is `backward_queries`.
// load_a, load_b and load_c(group, start, rows, padded rows) return rows, and place, with the same arguments, where to
// compute `out`. finish(group, start, rows, a, out, sums) stores it: row i of sums is the sum of b, or of c, of all
// keys up to i. z: that of the keys so far.
template <typename T, typename A, typename B, typename C, typename Place, typename Finish>
void scan_forward(const ScanSizes& s, int64_t inner, int64_t outer, bool sums_b, Rows<T> state, T* z, A& load_a,
                  B& load_b, C& load_c, Place& place, Finish& finish) {
  typedef Simd<T> X;
  const int64_t max_rows = round_up(s.chunk, BLOCK), sums_width = sums_b ? inner : outer;
  Block<T> transposed(inner, max_rows), pairs(max_rows, max_rows), sums(max_rows, sums_width), last(1, sums_width);
  const int64_t inner_ld = Block<T>::pad(inner), outer_ld = Block<T>::pad(outer);
  std::memcpy(last.data, z, sums_width * sizeof(T));
  for (int64_t start = 0; start < s.length; start += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.length - start), padded_rows = round_up(rows, BLOCK);
    const Rows<const T> b = load_b(0, start, rows, padded_rows), c = load_c(0, start, rows, padded_rows);
    X::transpose(transposed.data, transposed.ld, b.data, b.stride, padded_rows, inner_ld);
    auto summed = sums_b ? b : c;
    for (int64_t i = 0; i < rows; i++) {  // sums within the chunk first: they round less
      T* tile = sums.data + i * sums.ld;
      if (i == 0) std::memcpy(tile, summed.data, sums.ld * sizeof(T));
      else X::add(tile, tile - sums.ld, 1, summed.data + i * summed.stride, sums.ld);
    }
    for (int64_t i = 0; i < rows; i++) X::add(sums.data + i * sums.ld, sums.data + i * sums.ld, 1, last.data, sums.ld);
    for (int64_t g = 0; g < s.group; g++) {
      const Rows<const T> a = load_a(g, start, rows, padded_rows);
      const Rows<T> out = place(g, start, rows, padded_rows);
      causal_products(pairs, a, transposed, inner_ld, padded_rows);
      X::template product<BELOW>(out.data, out.stride, padded_rows, outer_ld, pairs.data, pairs.ld, 1, c.data, c.stride,
                                 padded_rows, true);
      for (int64_t n = 0; n < outer_ld; n += TILE_VECTORS * X::W)
        for (int64_t k = 0; k < inner_ld; k += SLAB_ROWS) {
          const int64_t columns = std::min<int64_t>(TILE_VECTORS * X::W, outer_ld - n),
                        slab = std::min(SLAB_ROWS, inner_ld - k);
          T* tile = state.data + k * state.stride + n;
          X::product(out.data + n, out.stride, padded_rows, columns, a.data + k, a.stride, 1, tile, state.stride, slab,
                     false);
          if (g + 1 == s.group)
            X::product(tile, state.stride, slab, columns, b.data + k, 1, b.stride, c.data + n, c.stride, padded_rows,
                       false);
        }
      finish(g, start, rows, a, out, sums);
    }
    std::memcpy(last.data, sums.data + (rows - 1) * sums.ld, sums.ld * sizeof(T));
  }
  std::memcpy(z, last.data, sums_width * sizeof(T));
}

// The gradients by keys and values, last chunk first: with s for the gradient by the state after a chunk,
// grad_v = y s + tril(x y^T)^T top, grad_y = v s^T + tril(top v^T + total)^T x, s += x^T top.
// load_top returns rows of top, and sets the address of their totals, or null.
template <typename T, typename LoadX, typename LoadY, typename LoadV, typename Top, typename PlaceY, typename PlaceV,
          typename Finish>
void scan_backward(const ScanSizes& s, Rows<T> state, T* z, LoadX& load_x, LoadY& load_y, LoadV& load_v, Top& load_top,
                   PlaceY& place_y, PlaceV& place_v, Finish& finish) {
  typedef Simd<T> X;
  const int64_t max_rows = round_up(s.chunk, BLOCK), F = s.features, E = s.values;
  const int64_t F_ld = Block<T>::pad(F), E_ld = Block<T>::pad(E);
  Block<T> y_transposed(F, max_rows), v_transposed(E, max_rows), pairs(max_rows, max_rows),
      piece(TILE_VECTORS * X::W, SLAB_ROWS), sum(1, F), last(1, F);
  std::memcpy(last.data, z, F * sizeof(T));
  for (int64_t start = (s.length - 1) / s.chunk * s.chunk; start >= 0; start -= s.chunk) {
    const int64_t rows = std::min(s.chunk, s.length - start), padded_rows = round_up(rows, BLOCK);
    const Rows<const T> y = load_y(0, start, rows, padded_rows), v = load_v(0, start, rows, padded_rows);
    const Rows<T> grad_y = place_y(0, start, rows, padded_rows), grad_v = place_v(0, start, rows, padded_rows);
    X::transpose(y_transposed.data, y_transposed.ld, y.data, y.stride, padded_rows, F_ld);
    X::transpose(v_transposed.data, v_transposed.ld, v.data, v.stride, padded_rows, E_ld);
    std::memcpy(sum.data, last.data, last.ld * sizeof(T));
    for (int64_t g = 0; g < s.group; g++) {
      const T* totals = nullptr;  // one number for each row
      int64_t totals_stride = 1;
      const Rows<const T> x = load_x(g, start, rows, padded_rows),
                          top = load_top(g, start, rows, padded_rows, totals, totals_stride);
      causal_products(pairs, x, y_transposed, F_ld, padded_rows);
      X::template product<ABOVE>(grad_v.data, grad_v.stride, padded_rows, E_ld, pairs.data, 1, pairs.ld, top.data,
                                 top.stride, padded_rows, g == 0);
      causal_products(pairs, top, v_transposed, E_ld, padded_rows);
      X::template product<ABOVE>(grad_y.data, grad_y.stride, padded_rows, F_ld, pairs.data, 1, pairs.ld, x.data,
                                 x.stride, padded_rows, g == 0);
      for (int64_t i = rows - 1; i >= 0; i--) {  // of later groups, only their contribution
        if (totals) X::add(sum.data, sum.data, totals[i * totals_stride], x.data + i * x.stride, sum.ld);
        if (totals || g == 0)
          X::add(grad_y.data + i * grad_y.stride, grad_y.data + i * grad_y.stride, 1, sum.data, sum.ld);
      }
      if (g == 0) std::memset(last.data, 0, last.ld * sizeof(T));
      X::add(last.data, last.data, 1, sum.data, sum.ld);
      std::memset(sum.data, 0, sum.ld * sizeof(T));
      for (int64_t n = 0; n < E_ld; n += TILE_VECTORS * X::W)
        for (int64_t k = 0; k < F_ld; k += SLAB_ROWS) {
          const int64_t columns = std::min<int64_t>(TILE_VECTORS * X::W, E_ld - n),
                        slab = std::min(SLAB_ROWS, F_ld - k);
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
    finish(start, rows, y, grad_y, grad_v);
  }
  std::memcpy(z, last.data, F * sizeof(T));
}

// -- of features ------------------------------------------------------------------------------------------------------

// t: x, y, v, top, total
template <typename T>
void attend(const Address* t, const ScanSizes& s, int64_t threads) {
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    Operand<T> x(t[2], head, s.chunk, s.features), y(t[3], head, s.chunk, s.features), v(t[4], head, s.chunk, s.values);
    Target<T> top(t[5], head, s.chunk, s.values);
    auto finish = [&](int64_t g, int64_t start, int64_t rows, Rows<const T> x_rows, Rows<T> out, const Block<T>& sums) {
      for (int64_t i = 0; i < rows; i++)
        *t[6].rows<T>(head, g, start + i).data =
            Simd<T>::dot(x_rows.data + i * x_rows.stride, sums.data + i * sums.ld, sums.ld);
      top.store(g, start, rows, out);
    };
    scan_forward<T>(s, s.features, s.values, true, t[0].rows<T>(head, 0, 0), t[1].rows<T>(head, 0, 0).data, x, y, v,
                    top, finish);
  });
}

// t: top, total, y, v, grad_x
template <typename T>
void backward_queries(const Address* t, const ScanSizes& s, int64_t threads) {
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    Operand<T> top(t[2], head, s.chunk, s.values), y(t[4], head, s.chunk, s.features), v(t[5], head, s.chunk, s.values);
    Target<T> grad_x(t[6], head, s.chunk, s.features);
    auto finish = [&](int64_t g, int64_t start, int64_t rows, Rows<const T>, Rows<T> out, const Block<T>& sums) {
      for (int64_t i = 0; i < rows && t[3].data; i++)
        Simd<T>::add(out.data + i * out.stride, out.data + i * out.stride, *t[3].rows<T>(head, g, start + i).data,
                     sums.data + i * sums.ld, sums.ld);
      grad_x.store(g, start, rows, out);
    };
    scan_forward<T>(s, s.values, s.features, false, t[0].rows<T>(head, 0, 0), t[1].rows<T>(head, 0, 0).data, top, v, y,
                    grad_x, finish);
  });
}

// t: x, y, v, top, total, grad_y, grad_v
template <typename T>
void backward_keys(const Address* t, const ScanSizes& s, int64_t threads) {
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    Operand<T> x(t[2], head, s.chunk, s.features), y(t[3], head, s.chunk, s.features), v(t[4], head, s.chunk, s.values),
        top(t[5], head, s.chunk, s.values);
    Target<T> grad_y(t[7], head, s.chunk, s.features), grad_v(t[8], head, s.chunk, s.values);
    auto load_top = [&](int64_t g, int64_t start, int64_t rows, int64_t padded, const T*& totals, int64_t& stride) {
      if (t[6].data) totals = t[6].rows<const T>(head, g, start).data, stride = t[6].l;
      return top(g, start, rows, padded);
    };
    auto finish = [&](int64_t start, int64_t rows, Rows<const T>, Rows<T> of_y, Rows<T> of_v) {
      grad_y.store(0, start, rows, of_y);
      grad_v.store(0, start, rows, of_v);
    };
    scan_backward<T>(s, t[0].rows<T>(head, 0, 0), t[1].rows<T>(head, 0, 0).data, x, y, v, load_top, grad_y, grad_v,
                     finish);
  });
}

// -- of queries and keys ----------------------------------------------------------------------------------------------

// What these functions read. t: q, k, v, valid
template <typename S>
struct Inputs {
  Features<S> x, y;
  Operand<float, S> v;
  Inputs(const Address* t, int64_t head, const ScanSizes& s)
      : x(t[0], {}, head, s.chunk, s.features, s.map), y(t[1], t[3], head, s.chunk, s.features, s.map),
        v(t[2], head, s.chunk, s.values) {}
};

// Rows that are computed in a block, always
auto use(Block<float>& block) {
  return [&block](int64_t, int64_t, int64_t, int64_t) { return Rows<float>{block.data, block.ld}; };
}

// t: q, k, v, valid, out, and the sums of weights
template <typename S>
void attend_rows(const Address* t, const ScanSizes& s, int64_t threads) {
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    Inputs<S> in(t + 2, head, s);
    Target<float> target(t[6], head, s.chunk, s.values);
    auto finish = [&](int64_t g, int64_t start, int64_t rows, Rows<const float> of_x, Rows<float> out,
                      const Block<float>& sums) {
      for (int64_t i = 0; i < rows && s.divides; i++) {
        const float total = X::dot(of_x.data + i * of_x.stride, sums.data + i * sums.ld, sums.ld);
        *t[7].rows<float>(head, g, start + i).data = total;
        divide(out.data + i * out.stride, Block<float>::pad(s.values), total);
      }
      target.store(g, start, rows, out);
    };
    scan_forward<float>(s, s.features, s.values, true, t[0].rows<float>(head, 0, 0), t[1].rows<float>(head, 0, 0).data,
                        in.x, in.y, in.v, target, finish);
  });
}

// t: q, k, v, valid, grad, out, totals, grad_q
template <typename S>
void backward_query_rows(const Address* t, const ScanSizes& s, int64_t threads) {
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    Inputs<S> in(t + 2, head, s);
    DividedGrads grads(t + 6, head, s.chunk, s.values, s.divides);
    Block<float> grad_x(round_up(s.chunk, BLOCK), s.features);
    auto place = use(grad_x);
    auto finish = [&](int64_t g, int64_t start, int64_t rows, Rows<const float>, Rows<float> out,
                      const Block<float>& sums) {
      for (int64_t i = 0; i < rows && s.divides; i++)
        X::add(out.data + i * out.stride, out.data + i * out.stride, grads.by_totals[i], sums.data + i * sums.ld,
               sums.ld);
      store_by_rows<S>(t[9].rows<S>(head, g, start), grad_x, in.x(g, start, rows, rows), rows, s.features, s.map);
    };
    scan_forward<float>(s, s.values, s.features, false, t[0].rows<float>(head, 0, 0), t[1].rows<float>(head, 0, 0).data,
                        grads, in.v, in.y, place, finish);
  });
}

// t: q, k, v, valid, grad, out, totals, grad_k, grad_v
template <typename S>
void backward_key_rows(const Address* t, const ScanSizes& s, int64_t threads) {
  parallel_for(s.heads, s.threads(threads), [=](int64_t head) {
    Inputs<S> in(t + 2, head, s);
    DividedGrads grads(t + 6, head, s.chunk, s.values, s.divides);
    Block<float> grad_y(round_up(s.chunk, BLOCK), s.features), grad_v(round_up(s.chunk, BLOCK), s.values);
    auto load_top = [&](int64_t g, int64_t start, int64_t rows, int64_t padded, const float*& totals, int64_t&) {
      if (s.divides) totals = grads.by_totals.data();
      return grads(g, start, rows, padded);
    };
    auto place_y = use(grad_y), place_v = use(grad_v);
    auto finish = [&](int64_t start, int64_t rows, Rows<const float> of_y, Rows<float>, Rows<float>) {
      store_by_rows<S>(t[9].rows<S>(head, 0, start), grad_y, of_y, rows, s.features, s.map);
      const auto to_v = t[10].rows<S>(head, 0, start);
      for (int64_t i = 0; i < rows; i++) store_row(to_v.data + i * to_v.stride, grad_v.data + i * grad_v.ld, s.values);
    };
    scan_backward<float>(s, t[0].rows<float>(head, 0, 0), t[1].rows<float>(head, 0, 0).data, in.x, in.y, in.v, load_top,
                         place_y, place_v, finish);
  });
}

}  // namespace

// t: the state, padded, in functions for the gradient by queries transposed, its z, and the tensors above (null for
// missing ones)
#define EXPORT_AS(NAME, DTYPE, S)                                                                   \
  extern "C" void NAME##_##DTYPE(const Address* tensors, const ScanSizes* sizes, int64_t threads) { \
    NAME<S>(tensors, *sizes, threads);                                                              \
  }
#define EXPORT(NAME)              \
  EXPORT_AS(NAME, float32, float) \
  EXPORT_AS(NAME, float64, double)
#define EXPORT_ROWS(NAME)             \
  EXPORT_AS(NAME, float32, float)     \
  EXPORT_AS(NAME, bfloat16, BFloat16) \
  EXPORT_AS(NAME, float16, Float16)
EXPORT(attend)
EXPORT(backward_queries)
EXPORT(backward_keys)
EXPORT_ROWS(attend_rows)
EXPORT_ROWS(backward_query_rows)
EXPORT_ROWS(backward_key_rows)
