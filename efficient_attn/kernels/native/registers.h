// The parts of scan.cpp and decode.cpp: a product held in registers, a transposition, and padded matrices.
//
//   out [M, N] (+)= a [M, K] b [K, N]: a tile of M rows and a few vectors stays in registers while k goes from 0 to K
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, TILE_VECTORS = 4;  // of a vector; vectors of a tile, as the registers hold
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, TILE_VECTORS = 2;
#else
constexpr int VECTOR_BYTES = 16, TILE_VECTORS = 2;
#endif

constexpr int64_t SLAB_ROWS = 64;  // rows of the state at a time: with a tile's columns they fit the first cache
constexpr int64_t BLOCK = 16;      // rows of a chunk are padded to a multiple of it, as it is of any vector's width

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

enum Triangle { ALL, BELOW, ABOVE };  // the pairs (i, j) of a product: all, j <= i, or j >= i

template <typename T>
struct Rows {  // one head's rows of a tensor, each of them contiguous
  T* data = nullptr;
  int64_t stride = 0;
};

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
typedef uint16_t Halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint32_t Bits __attribute__((vector_size(VECTOR_BYTES)));

// As integers of 32 bits; GCC makes several instructions of its own conversion
inline Bits load_bits(const void* p) {
#if defined(__AVX512F__)
  return (Bits)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#else
  Halves halves;
  std::memcpy(&halves, p, sizeof halves);
  return __builtin_convertvector(halves, Bits);
#endif
}

template <typename T>
struct Simd {
  static constexpr int W = VECTOR_BYTES / sizeof(T);
  typedef T Vec __attribute__((vector_size(VECTOR_BYTES)));
  typedef T Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));

  static Vec load(const T* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static void store(T* p, Vec x) { *reinterpret_cast<Unaligned*>(p) = x; }

  // Half precision, widened: the upper half of a float
  static Vec load(const BFloat16* p) { return (Vec)(load_bits(p) << 16); }
  // Its exponent has another offset; infinities and NaN keep the largest exponent
  static Vec load(const Float16* p) {
#if defined(__F16C__) && defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
    return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    const Bits bits = load_bits(p), magnitude = (bits & 0x7fff) << 13;
    const Vec scaled = (Vec)magnitude * 0x1p112f;
    return (Vec)(((Bits)scaled | (magnitude >= 0x0f800000 ? Bits{} + 0x7f800000 : Bits{})) | (bits & 0x8000) << 16);
#endif
  }

  // out [M, N vectors] (+)= a [M, k] b [k, N vectors]; a has strides for rows and for k
  template <int M, int N, typename S>
  static inline __attribute__((always_inline)) void tile(T* out, int64_t ldo, const T* a, int64_t am, int64_t ak,
                                                         const S* b, int64_t ldb, int64_t k, bool clear) {
    Vec sum[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) sum[m][n] = Vec{};
    for (int64_t i = 0; i < k; i++, a += ak, b += ldb) {
      Vec row[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) row[n] = load(b + n * W);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[m][n] += a[m * am] * row[n];
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) {
        T* to = out + m * ldo + n * W;
        store(to, clear ? sum[m][n] : load(to) + sum[m][n]);  // as pairwise sums, it rounds less than adding each term
      }
  }

  // As `tile`, for any number of rows that is a multiple of M; of a triangle, only the part that is not zero
  template <int M, int N, Triangle triangle>
  static void strip(T* out, int64_t ldo, int64_t rows, const T* a, int64_t am, int64_t ak, const T* b, int64_t ldb,
                    int64_t k, bool clear) {
    for (int64_t i = 0; i < rows; i += M) {
      int64_t from = triangle == ABOVE ? i : 0, to = triangle == BELOW ? i + M : k;
      tile<M, N>(out + i * ldo, ldo, a + i * am + from * ak, am, ak, b + from * ldb, ldb, to - from, clear);
    }
  }

  template <Triangle triangle = ALL>
  static void product(T* out, int64_t ldo, int64_t rows, int64_t columns, const T* a, int64_t am, int64_t ak,
                      const T* b, int64_t ldb, int64_t k, bool clear) {
    for (int64_t n = 0; n < columns; n += TILE_VECTORS * W) {
      switch (std::min<int64_t>((columns - n) / W, TILE_VECTORS)) {
        case 1:
          strip<8, 1, triangle>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear);
          break;
        case 2:
          strip<4 * TILE_VECTORS / 2, 2, triangle>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear);
          break;
        case 3:
          strip<4, 3, triangle>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear);
          break;
        default:
          strip<4, TILE_VECTORS, triangle>(out + n, ldo, rows, a, am, ak, b + n, ldb, k, clear);
      }
    }
  }

  // Exchange element j of row i with element i of row j where i and j differ in the bit S
  template <int S, int... I>
  static void swap(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
    Vec low = __builtin_shufflevector(a, b, ((I & S) ? W + I - S : I)...);
    b = __builtin_shufflevector(a, b, ((I & S) ? W + I : I + S)...);
    a = low;
  }

  // Element i of the result is element i + S, cyclically
  template <int S, int... I>
  static Vec rotate(Vec x, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(x, x, ((I + S) % W)...);
  }
  template <int S>
  static Vec rotate(Vec x) {
    return rotate<S>(x, std::make_integer_sequence<int, W>{});
  }

  template <int S>
  static inline __attribute__((always_inline)) void swap_lanes(Vec* x) {
    if constexpr (S < W) {
#pragma GCC unroll 16
      for (int i = 0; i < W; i++)
        if (!(i & S)) swap<S>(x[i], x[i | S], std::make_integer_sequence<int, W>{});
      swap_lanes<2 * S>(x);
    }
  }

  // Vectors that belong to the numbers 0 to COUNT - 1: number i * STEP + j of vector v becomes v * STEP + j of vector i
  template <int STEP, int COUNT, int S = 1>
  static inline __attribute__((always_inline)) void exchange(Vec* x) {
    if constexpr (S < COUNT) {
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i++)
        if (!(i & S)) swap<STEP * S>(x[i], x[i | S], std::make_integer_sequence<int, W>{});
      exchange<STEP, COUNT, 2 * S>(x);
    }
  }

  // Number i of the result is the sum of the numbers of vector i, of W
  template <int S = 1>
  static inline __attribute__((always_inline)) Vec add_up(Vec* x) {
    if constexpr (S == W) {
      return x[0];
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < W; i += 2 * S) {
        swap<S>(x[i], x[i + S], std::make_integer_sequence<int, W>{});
        x[i] += x[i + S];
      }
      return add_up<2 * S>(x);
    }
  }

  // rows and columns are multiples of W
  static void transpose(T* out, int64_t ldo, const T* a, int64_t lda, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += W)
      for (int64_t j = 0; j < columns; j += W) {
        Vec x[W];
#pragma GCC unroll 16
        for (int r = 0; r < W; r++) x[r] = load(a + (i + r) * lda + j);
        swap_lanes<1>(x);
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

// 2^f for a fraction f of at most one half
inline Simd<float>::Vec power_of_fraction(Simd<float>::Vec f) {
  Simd<float>::Vec p = f * 1.5403530e-4f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  return p * f + 1.f;
}

template <typename T>
struct Memory {  // numbers that start at a cache line, all zero
  std::unique_ptr<void, void (*)(void*)> allocation;
  T* data;
  explicit Memory(int64_t n) : allocation(std::calloc(n * sizeof(T) + 64, 1), std::free) {
    data = reinterpret_cast<T*>(round_up(reinterpret_cast<int64_t>(allocation.get()), 64));
  }
};

template <typename T>
struct Block : Memory<T> {                                  // a matrix for tiles: rows and columns padded by zeros
  static constexpr int64_t STEP = std::max(8, Simd<T>::W);  // the widest vector, and the tallest tile
  int64_t ld;
  static int64_t pad(int64_t columns) { return round_up(columns, STEP); }
  Block(int64_t rows, int64_t columns) : Memory<T>(pad(rows) * pad(columns)), ld(pad(columns)) {}

  // These rows: in place if they need neither padding nor another type, else copied here
  template <typename S>
  Rows<const T> load_rows(Rows<const S> x, int64_t rows, int64_t padded, int64_t width) {
    if constexpr (std::is_same_v<S, T>)
      if (rows == padded && width == ld) return x;
    for (int64_t i = 0; i < rows; i++) copy_row(this->data + i * ld, x.data + i * x.stride, width);
    if (rows < padded) std::memset(this->data + rows * ld, 0, (padded - rows) * ld * sizeof(T));
    return {this->data, ld};
  }

  // As numbers of T; the last vector's rest becomes zeros
  template <typename S>
  static void copy_row(T* to, const S* from, int64_t width) {
    typedef Simd<T> X;
    int64_t i = 0;
    for (; i + X::W <= width; i += X::W) X::store(to + i, X::load(from + i));
    if (i == width) return;
    S rest[X::W] = {};
    std::copy(from + i, from + width, rest);
    X::store(to + i, X::load(rest));
  }

  // Where to write such rows, to be copied back if they were padded
  Rows<T> output_rows(Rows<T> x, int64_t rows, int64_t padded, int64_t width) {
    if (rows == padded && width == ld) return x;
    return {this->data, ld};
  }
  void copy_back(Rows<T> x, int64_t rows, int64_t width) const {
    for (int64_t i = 0; i < rows; i++) std::memcpy(x.data + i * x.stride, this->data + i * ld, width * sizeof(T));
  }
};

}  // namespace
