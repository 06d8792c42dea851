// What scan.cpp and decode.cpp are made of: a product held in registers, a transposition, matrices padded to fit both,
// and threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, WIDE = 4;  // of a vector, and vectors a tile is wide: what the registers hold
#elif defined(__AVX__)
constexpr int BYTES = 32, WIDE = 2;
#else
constexpr int BYTES = 16, WIDE = 2;
#endif

constexpr int64_t SLAB = 64;   // rows of the state at a time: with a tile's columns they fit the first cache
constexpr int64_t BLOCK = 16;  // rows of a chunk are padded to a multiple of this, which is one of any vector's width

int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

enum Part { ALL, BELOW, ABOVE };  // the pairs that a product takes: all, j <= i, or j >= i

template <typename T>
struct Rows {  // one head's rows of a tensor, each of them contiguous
  T* data = nullptr;
  int64_t stride = 0;
};

template <typename T>
struct Maths {
  static constexpr int W = BYTES / sizeof(T);
  typedef T Vec __attribute__((vector_size(BYTES)));
  typedef T Loose __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));

  static Vec load(const T* p) { return *reinterpret_cast<const Loose*>(p); }
  static void store(T* p, Vec x) { *reinterpret_cast<Loose*>(p) = x; }

  // out [M, N vectors] (+)= a [M, k] b [k, N vectors]; a has strides for rows and for k. soon: memory like b that will
  // be wanted next, asked for a few lines at a time: a burst would have to wait for all of them
  template <int M, int N, bool hint>
  static inline __attribute__((always_inline)) void tile(T* out, int64_t ldo, const T* a, int64_t am, int64_t ak,
                                                         const T* b, int64_t ldb, int64_t k, bool clear,
                                                         Rows<const T> soon) {
    Vec sum[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sum[m][n] = clear ? Vec{} : load(out + m * ldo + n * W);
    for (int64_t i = 0; i < k; i++, a += ak, b += ldb) {
      Vec row[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) row[n] = load(b + n * W);
      if (hint && soon.data) {
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) __builtin_prefetch(soon.data + i * soon.stride + n * W);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[m][n] += a[m * am] * row[n];
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) store(out + m * ldo + n * W, sum[m][n]);
  }

  // As `tile`, for any number of rows that is a multiple of M; of a triangle, only what is not zero is taken
  template <int M, int N, Part part, bool hint>
  static void strip(T* out, int64_t ldo, int64_t rows, const T* a, int64_t am, int64_t ak, const T* b, int64_t ldb,
                    int64_t k, bool clear, Rows<const T> soon) {
    for (int64_t i = 0; i < rows; i += M) {
      int64_t from = part == ABOVE ? i : 0, to = part == BELOW ? i + M : k;
      tile<M, N, hint>(out + i * ldo, ldo, a + i * am + from * ak, am, ak, b + from * ldb, ldb, to - from, clear, soon);
      soon = {};
    }
  }

  template <Part part = ALL, bool hint = false>
  static void product(T* out, int64_t ldo, int64_t rows, int64_t columns, const T* a, int64_t am, int64_t ak,
                      const T* b, int64_t ldb, int64_t k, bool clear, Rows<const T> soon = {}) {
    for (int64_t n = 0; n < columns; n += WIDE * W) {
      const Rows<const T> now{soon.data ? soon.data + n : nullptr, soon.stride};
      switch (std::min<int64_t>((columns - n) / W, WIDE)) {
        case 1: strip<8, 1, part, hint>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear, now); break;
        case 2: strip<4 * WIDE / 2, 2, part, hint>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear, now); break;
        case 3: strip<4, 3, part, hint>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear, now); break;
        default: strip<4, WIDE, part, hint>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear, now);
      }
    }
  }

  // Exchange element j of row i with element i of row j wherever the bit S tells them apart
  template <int S, int... I>
  static void swap(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
    Vec low = __builtin_shufflevector(a, b, ((I & S) ? W + I - S : I)...);
    b = __builtin_shufflevector(a, b, ((I & S) ? W + I : I + S)...);
    a = low;
  }

  // Element i is that which was i + S, around the end
  template <int S, int... I>
  static Vec turn(Vec x, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(x, x, ((I + S) % W)...);
  }
  template <int S>
  static Vec turn(Vec x) {
    return turn<S>(x, std::make_integer_sequence<int, W>{});
  }

  template <int S>
  static inline __attribute__((always_inline)) void swap_all(Vec* x) {
    if constexpr (S < W) {
#pragma GCC unroll 16
      for (int i = 0; i < W; i++)
        if (!(i & S)) swap<S>(x[i], x[i | S], std::make_integer_sequence<int, W>{});
      swap_all<2 * S>(x);
    }
  }

  // rows and columns are multiples of W
  static void transpose(T* out, int64_t ldo, const T* a, int64_t lda, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += W)
      for (int64_t j = 0; j < columns; j += W) {
        Vec x[W];
#pragma GCC unroll 16
        for (int r = 0; r < W; r++) x[r] = load(a + (i + r) * lda + j);
        swap_all<1>(x);
#pragma GCC unroll 16
        for (int r = 0; r < W; r++) store(out + (j + r) * ldo + i, x[r]);
      }
  }

  static T dot(const T* a, const T* b, int64_t width) {
    Vec sum{};
    for (int64_t i = 0; i < width; i += W) sum += load(a + i) * load(b + i);
    T total = 0;
    for (int i = 0; i < W; i++) total += sum[i];
    return total;
  }

  // out = a + t b
  static void add(T* out, const T* a, T t, const T* b, int64_t width) {
    for (int64_t i = 0; i < width; i += W) store(out + i, load(a + i) + t * load(b + i));
  }
};

template <typename T>
struct Memory {  // numbers that start at a cache line, all zero
  std::unique_ptr<void, void (*)(void*)> own;
  T* data;
  explicit Memory(int64_t n) : own(std::calloc(n * sizeof(T) + 64, 1), std::free) {
    data = reinterpret_cast<T*>(up(reinterpret_cast<int64_t>(own.get()), 64));
  }
};

template <typename T>
struct Block : Memory<T> {  // a matrix as the tiles want it: rows and columns padded by zeros
  static constexpr int64_t STEP = std::max(8, Maths<T>::W);  // the widest vector, and the tallest tile
  int64_t ld;
  Block(int64_t rows, int64_t columns) : Memory<T>(up(rows, STEP) * up(columns, STEP)), ld(up(columns, STEP)) {}

  // These rows: in place where they already are as the tiles want them, else copied here
  Rows<const T> take(Rows<const T> x, int64_t rows, int64_t padded, int64_t width) {
    if (rows == padded && width == ld) return x;
    for (int64_t i = 0; i < rows; i++) std::memcpy(this->data + i * ld, x.data + i * x.stride, width * sizeof(T));
    if (rows < padded) std::memset(this->data + rows * ld, 0, (padded - rows) * ld * sizeof(T));
    return {this->data, ld};
  }

  // Where to write such rows, and to bring them where they belong
  Rows<T> room(Rows<T> x, int64_t rows, int64_t padded, int64_t width) {
    if (rows == padded && width == ld) return x;
    return {this->data, ld};
  }
  void bring(Rows<T> x, int64_t rows, int64_t width) const {
    for (int64_t i = 0; i < rows; i++) std::memcpy(x.data + i * x.stride, this->data + i * ld, width * sizeof(T));
  }
};

template <typename T>
struct Tensor {  // [Bh, G, L, width] by strides
  T* data;
  int64_t bh, g, l;
  Rows<T> rows(int64_t head, int64_t group, int64_t i) const { return {data + head * bh + group * g + i * l, l}; }
};

// Every item once, on so many threads. They live for one call: OpenMP's would be a second pool beside torch's own
template <typename Work>
void each(int64_t items, int64_t threads, Work work) {
  threads = std::max<int64_t>(std::min(threads, items), 1);
  std::vector<std::thread> others;
  for (int64_t t = 0; t < threads; t++) {
    auto mine = [=] { for (int64_t item = t; item < items; item += threads) work(item); };
    try {
      if (t + 1 < threads) others.emplace_back(mine);
      else mine();
    } catch (const std::system_error&) {  // no further thread is to be had
      mine();
    }
  }
  for (auto& other : others) other.join();
}

}  // namespace
