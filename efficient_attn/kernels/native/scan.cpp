// A stretch of causal linear attention, chunk by chunk: what chunks.py says for keys without weights, on the CPU.
//
// The state of sums [F, E] stays in the nearest cache while a chunk's rows pass through it. All products are made of
// one tile that is held in registers. Vectors are those of the compiler (GCC from 12 on, Clang), so that one text
// serves AVX-512, AVX2 and others. Nothing here knows of torch: scan.py passes addresses and strides.

#include "registers.h"

namespace {

struct Sizes {
  int64_t heads, group, length, features, values, chunk;
};

// tril(a b^T) of a chunk, from b^T
template <typename T>
void earlier(Block<T>& pairs, Rows<const T> a, const Block<T>& b, int64_t width, int64_t rows) {
  for (int64_t i = 0; i < rows; i += BLOCK) {
    T* here = pairs.data + i * pairs.ld;
    Maths<T>::product(here, pairs.ld, BLOCK, i + BLOCK, a.data + i * a.stride, a.stride, 1, b.data, b.ld, width, true);
    for (int64_t r = 0; r < BLOCK; r++, here += pairs.ld) std::fill(here + i + r + 1, here + i + BLOCK, T(0));
  }
}

// out = tril(a b^T) c + a S, S += b^T c. This is `attend`, where sums of weights are to be written; and, as a = by_top,
// b = v, c = y, it is `backward_queries`, where gradients by these sums are to be read: a further column of a against ones in
// b. z: the sums of all features of keys so far.
template <typename T>
void forwards(const Sizes& s, int64_t head, Tensor<const T> a_, Tensor<const T> b_, Tensor<const T> c_, int64_t inner,
              int64_t outer, Block<T>& state, T* z, Tensor<T> out_, Tensor<T> written, Tensor<const T> read) {
  typedef Maths<T> X;
  const int64_t most = up(s.chunk, BLOCK), wide = written.data ? inner : outer;
  Block<T> pa(most, inner), pb(most, inner), pc(most, outer), po(most, outer), turned(inner, most);
  Block<T> pairs(most, most), sums(most, wide), last(1, wide);
  std::memcpy(last.data, z, wide * sizeof(T));
  for (int64_t start = 0; start < s.length; start += s.chunk) {
    const int64_t rows = std::min(s.chunk, s.length - start), padded = up(rows, BLOCK);
    auto b = pb.take(b_.rows(head, 0, start), rows, padded, inner);
    auto c = pc.take(c_.rows(head, 0, start), rows, padded, outer);
    X::transpose(turned.data, turned.ld, b.data, b.stride, padded, pb.ld);
    auto summed = written.data ? b : c;
    for (int64_t i = 0; i < rows; i++) {  // sums within the chunk first: they round less
      T* here = sums.data + i * sums.ld;
      if (i == 0) std::memcpy(here, summed.data, sums.ld * sizeof(T));
      else X::add(here, here - sums.ld, 1, summed.data + i * summed.stride, sums.ld);
    }
    for (int64_t i = 0; i < rows; i++) X::add(sums.data + i * sums.ld, sums.data + i * sums.ld, 1, last.data, sums.ld);
    for (int64_t g = 0; g < s.group; g++) {
      auto a = pa.take(a_.rows(head, g, start), rows, padded, inner);
      auto out = po.room(out_.rows(head, g, start), rows, padded, outer);
      earlier(pairs, a, turned, pb.ld, padded);
      X::template product<BELOW>(out.data, out.stride, padded, pc.ld, pairs.data, pairs.ld, 1, c.data, c.stride,
                                 padded, true);
      for (int64_t i = 0; i < rows; i++) {
        const T* sum = sums.data + i * sums.ld;
        if (written.data) *written.rows(head, g, start + i).data = X::dot(a.data + i * a.stride, sum, sums.ld);
        else if (read.data) X::add(out.data + i * out.stride, out.data + i * out.stride,
                                   *read.rows(head, g, start + i).data, sum, sums.ld);
      }
      for (int64_t n = 0; n < pc.ld; n += WIDE * X::W)
        for (int64_t k = 0; k < pb.ld; k += SLAB) {
          const int64_t columns = std::min<int64_t>(WIDE * X::W, pc.ld - n), slab = std::min(SLAB, pb.ld - k);
          T* here = state.data + k * state.ld + n;
          X::product(out.data + n, out.stride, padded, columns, a.data + k, a.stride, 1, here, state.ld, slab, false);
          if (g + 1 == s.group)
            X::product(here, state.ld, slab, columns, b.data + k, 1, b.stride, c.data + n, c.stride, padded, false);
        }
      if (out.data == po.data) po.bring(out_.rows(head, g, start), rows, outer);
    }
    std::memcpy(last.data, sums.data + (rows - 1) * sums.ld, sums.ld * sizeof(T));
  }
  std::memcpy(z, last.data, wide * sizeof(T));
}

// The gradients by keys and values, last chunk first: with s for the gradient by the state after a chunk,
// by_v = y s + tril(x y^T)^T top, by_y = v s^T + tril(top v^T + total)^T x, s += x^T top.
template <typename T>
void backwards(const Sizes& s, int64_t head, Tensor<const T> x_, Tensor<const T> y_, Tensor<const T> v_,
               Tensor<const T> top_, Tensor<const T> total, Block<T>& state, T* z, Tensor<T> by_y_, Tensor<T> by_v_) {
  typedef Maths<T> X;
  const int64_t most = up(s.chunk, BLOCK), F = s.features, E = s.values;
  Block<T> px(most, F), py(most, F), pv(most, E), pt(most, E), oy(most, F), ov(most, E);
  Block<T> y_turned(F, most), v_turned(E, most), pairs(most, most), piece(WIDE * X::W, SLAB), sum(1, F), last(1, F);
  std::memcpy(last.data, z, F * sizeof(T));
  for (int64_t start = (s.length - 1) / s.chunk * s.chunk; start >= 0; start -= s.chunk) {
    const int64_t rows = std::min(s.chunk, s.length - start), padded = up(rows, BLOCK);
    auto y = py.take(y_.rows(head, 0, start), rows, padded, F);
    auto v = pv.take(v_.rows(head, 0, start), rows, padded, E);
    auto by_y = oy.room(by_y_.rows(head, 0, start), rows, padded, F);
    auto by_v = ov.room(by_v_.rows(head, 0, start), rows, padded, E);
    X::transpose(y_turned.data, y_turned.ld, y.data, y.stride, padded, py.ld);
    X::transpose(v_turned.data, v_turned.ld, v.data, v.stride, padded, pv.ld);
    std::memcpy(sum.data, last.data, last.ld * sizeof(T));
    for (int64_t g = 0; g < s.group; g++) {
      auto x = px.take(x_.rows(head, g, start), rows, padded, F);
      auto top = pt.take(top_.rows(head, g, start), rows, padded, E);
      earlier(pairs, x, y_turned, py.ld, padded);
      X::template product<ABOVE>(by_v.data, by_v.stride, padded, pv.ld, pairs.data, 1, pairs.ld, top.data, top.stride,
                                 padded, g == 0);
      earlier(pairs, top, v_turned, pv.ld, padded);
      X::template product<ABOVE>(by_y.data, by_y.stride, padded, py.ld, pairs.data, 1, pairs.ld, x.data, x.stride,
                                 padded, g == 0);
      for (int64_t i = rows - 1; i >= 0; i--) {  // of later groups, only what they add
        if (total.data) X::add(sum.data, sum.data, *total.rows(head, g, start + i).data, x.data + i * x.stride, sum.ld);
        if (total.data || g == 0)
          X::add(by_y.data + i * by_y.stride, by_y.data + i * by_y.stride, 1, sum.data, sum.ld);
      }
      if (g == 0) std::memset(last.data, 0, last.ld * sizeof(T));
      X::add(last.data, last.data, 1, sum.data, sum.ld);
      std::memset(sum.data, 0, sum.ld * sizeof(T));
      for (int64_t n = 0; n < pv.ld; n += WIDE * X::W)
        for (int64_t k = 0; k < py.ld; k += SLAB) {
          const int64_t columns = std::min<int64_t>(WIDE * X::W, pv.ld - n), slab = std::min(SLAB, py.ld - k);
          T* here = state.data + k * state.ld + n;
          if (g == 0) {
            X::product(by_v.data + n, by_v.stride, padded, columns, y.data + k, y.stride, 1, here, state.ld, slab,
                       false);
            X::transpose(piece.data, piece.ld, here, state.ld, slab, columns);
            X::product(by_y.data + k, by_y.stride, padded, slab, v.data + n, v.stride, 1, piece.data, piece.ld,
                       columns, false);
          }
          X::product(here, state.ld, slab, columns, x.data + k, 1, x.stride, top.data + n, top.stride, padded, false);
        }
    }
    if (by_y.data == oy.data) oy.bring(by_y_.rows(head, 0, start), rows, F);
    if (by_v.data == ov.data) ov.bring(by_v_.rows(head, 0, start), rows, E);
  }
  std::memcpy(z, last.data, F * sizeof(T));
}

// The state of a head, padded; ``turned``: transposed
template <typename T>
struct Held : Block<T> {
  T* from;
  int64_t rows, columns;
  bool turned;
  Held(T* kv, const Sizes& s, bool turned)
      : Block<T>(turned ? s.values : s.features, turned ? s.features : s.values),
        from(kv), rows(s.features), columns(s.values), turned(turned) {
    move([](T& own, T& theirs) { own = theirs; });
  }
  ~Held() { move([](T& own, T& theirs) { theirs = own; }); }

  template <typename Copy>
  void move(Copy copy) {
    const int64_t down = turned ? 1 : this->ld, along = turned ? this->ld : 1;
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns; j++) copy(this->data[i * down + j * along], from[i * columns + j]);
  }
};

template <typename T, typename P>
Tensor<T> tensor(P* data, const int64_t*& strides) {
  Tensor<T> made{static_cast<T*>(data), strides[0], strides[1], strides[2]};
  strides += 3;
  return made;
}

template <typename T>
void attend(void** p, const int64_t* strides, const Sizes& s, int64_t threads) {
  auto x = tensor<const T>(p[0], strides), y = tensor<const T>(p[1], strides), v = tensor<const T>(p[2], strides);
  T *kv = static_cast<T*>(p[3]), *z = static_cast<T*>(p[4]);
  auto top = tensor<T>(p[5], strides), total = tensor<T>(p[6], strides);
  each(s.heads, threads, [=](int64_t head) {
    Held<T> state(kv + head * s.features * s.values, s, false);
    forwards<T>(s, head, x, y, v, s.features, s.values, state, z + head * s.features, top, total, {});
  });
}

template <typename T>
void backward_queries(void** p, const int64_t* strides, const Sizes& s, int64_t threads) {
  auto top = tensor<const T>(p[0], strides), total = tensor<const T>(p[1], strides);
  auto y = tensor<const T>(p[2], strides), v = tensor<const T>(p[3], strides);
  T *kv = static_cast<T*>(p[4]), *z = static_cast<T*>(p[5]);
  auto by_x = tensor<T>(p[6], strides);
  each(s.heads, threads, [=](int64_t head) {
    Held<T> state(kv + head * s.features * s.values, s, true);
    forwards<T>(s, head, top, v, y, s.values, s.features, state, z + head * s.features, by_x, {}, total);
  });
}

template <typename T>
void backward_keys(void** p, const int64_t* strides, const Sizes& s, int64_t threads) {
  auto x = tensor<const T>(p[0], strides), y = tensor<const T>(p[1], strides), v = tensor<const T>(p[2], strides);
  auto top = tensor<const T>(p[3], strides), total = tensor<const T>(p[4], strides);
  T *kv = static_cast<T*>(p[5]), *z = static_cast<T*>(p[6]);
  auto by_y = tensor<T>(p[7], strides), by_v = tensor<T>(p[8], strides);
  each(s.heads, threads, [=](int64_t head) {
    Held<T> state(kv + head * s.features * s.values, s, false);
    backwards<T>(s, head, x, y, v, top, total, state, z + head * s.features, by_y, by_v);
  });
}

}  // namespace

// Addresses in the order of the functions above (null for totals that are not there), and three strides for each tensor
// but the state: of a head of keys, of a query head in its group, of a row.
#define EXPORT(name)                                                                                              \
  extern "C" void name##_float(void** p, const int64_t* strides, const Sizes* sizes, int64_t threads) {           \
    name<float>(p, strides, *sizes, threads);                                                                     \
  }                                                                                                               \
  extern "C" void name##_double(void** p, const int64_t* strides, const Sizes* sizes, int64_t threads) {          \
    name<double>(p, strides, *sizes, threads);                                                                    \
  }
EXPORT(attend)
EXPORT(backward_queries)
EXPORT(backward_keys)
