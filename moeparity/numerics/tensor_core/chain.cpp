// A chain of truncated fused dot-adds on a CPU, 8 outputs at a time, 16 with AVX-512. Held to the eager form by
// compiled.py.
//
// All rounding is toward zero while this runs, so that a conversion of a sum to fp32 cuts it off. Products of two
// factors are exact in fp32, and so is a product times a power of two unless it falls below every kept bit. Where
// exponents are outside of the range in which that holds, or a number is not finite, `slow` does the step in fp64.
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define WIDE 1
#endif

namespace {

#ifdef WIDE
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif
constexpr int ROWS = 64;        // rows that share a tile of b
constexpr int ABSENT = -8192;   // exponent of a zero
constexpr int SPECIAL = 16000;  // exponent of infinity and NaN
constexpr int LOW = -100, HIGH = 120;  // largest exponents for which fp32 does

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef double Doubles __attribute__((vector_size(8 * LANES)));

struct Arithmetic {
    int fraction, floor;
    int32_t mask;  // of the bits of a result that are kept
};

struct Matrix {
    const void* data;
    long row, column;  // strides in elements
    int bf16;          // or fp32
    int least;
};

inline float number(const Matrix& x, long i, long j) {
    const long at = i * x.row + j * x.column;
    if (!x.bf16) return static_cast<const float*>(x.data)[at];
    const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(x.data)[at]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline int exponent(float x, int least) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    bits &= 0x7fffffff;
    if (bits == 0) return ABSENT;
    const int e = (bits >> 23) - 127;
    return e == 128 ? SPECIAL : e < least ? least : e;
}

template <int L>
struct Tile {
    Floats values[L];
    Shorts exponents[L];

    // b [k0 .. k0 + L, n0 .. n0 + count], other lanes zero.
    void load(const Matrix& b, long k0, long n0, int count) {
#ifdef WIDE
        // Two neighbours along K of 16 rows of a weight at once.
        if (b.bf16 && count == LANES && b.row == 1 && b.column < (1 << 26)) {
            const uint16_t* from = static_cast<const uint16_t*>(b.data) + k0 + n0 * b.column;
            const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            const __m512i rows = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(b.column)));
            for (int k = 0; k < L; k += 2) {
                const Ints pair = reinterpret_cast<Ints>(_mm512_i32gather_epi32(rows, from + k, 2));
                keep(k, pair << 16, b.least);
                keep(k + 1, pair & static_cast<int32_t>(0xffff0000), b.least);
            }
            return;
        }
#endif
        if (b.bf16 && count == LANES && (b.row == 1 || b.column == 1)) {
            Halves halves[L];
            load_halves(b, k0, n0, halves);
            for (int k = 0; k < L; k++) keep(k, __builtin_convertvector(halves[k], Ints) << 16, b.least);
            return;
        }
        for (int k = 0; k < L; k++) {
            float row[LANES] = {};
            for (int n = 0; n < count; n++) row[n] = number(b, k0 + k, n0 + n);
            Ints bits;
            std::memcpy(&bits, row, sizeof bits);
            keep(k, bits, b.least);
        }
    }

    void load_halves(const Matrix& b, long k0, long n0, Halves* halves) {
        const uint16_t* from = static_cast<const uint16_t*>(b.data) + k0 * b.row + n0 * b.column;
        if (b.column == 1) {
            for (int k = 0; k < L; k++) std::memcpy(&halves[k], from + k * b.row, sizeof halves[k]);
            return;
        }
        uint16_t rows[LANES][L], columns[L][LANES];
        for (int n = 0; n < LANES; n++) std::memcpy(rows[n], from + n * b.column, sizeof rows[n]);
        for (int k = 0; k < L; k++)
            for (int n = 0; n < LANES; n++) columns[k][n] = rows[n][k];
        std::memcpy(halves, columns, sizeof columns);
    }

    void keep(int k, Ints bits, int least) {
        std::memcpy(&values[k], &bits, sizeof bits);
        bits &= 0x7fffffff;
        Ints e = (bits >> 23) - 127;
        e = e == 128 ? e * 0 + SPECIAL : e < least ? e * 0 + least : e;
        exponents[k] = __builtin_convertvector(bits == 0 ? e * 0 + ABSENT : e, Shorts);
    }
};

template <int L>
float slow(const float* a, const int16_t* powers, const Tile<L>& b, int lane, float c, const Arithmetic& how) {
    double special = c;
    int largest = exponent(c, -126);
    bool finite = std::isfinite(c);
    for (int k = 0; k < L; k++) {
        special += static_cast<double>(a[k]) * b.values[k][lane];
        finite = finite && std::isfinite(a[k]) && std::isfinite(b.values[k][lane]);
        const int e = powers[k] + b.exponents[k][lane];
        largest = e > largest ? e : largest;
    }
    float result;
    if (!finite) {
        result = static_cast<float>(special);
        const uint32_t nan = 0x7fffffff;
        if (std::isnan(result)) std::memcpy(&result, &nan, 4);
        return result;
    }
    largest = largest < how.floor ? how.floor : largest;
    const double unit = std::ldexp(1.0, how.fraction - largest);
    double sum = std::trunc(c * unit);
    for (int k = 0; k < L; k++) sum += std::trunc(static_cast<double>(a[k]) * b.values[k][lane] * unit);
    const double exact = (sum + 0.0) * std::ldexp(1.0, largest - how.fraction);
    if (std::fabs(exact) >= std::ldexp(1.0, 128)) return static_cast<float>(std::copysign(INFINITY, exact));
    result = static_cast<float>(exact);
    int32_t bits;
    std::memcpy(&bits, &result, 4);
    bits &= how.mask;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline bool somewhere(Ints lanes) {
#ifdef WIDE
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(lanes)) != 0;
#else
    int64_t parts[LANES / 2], found = 0;
    std::memcpy(parts, &lanes, sizeof parts);
    for (int64_t part : parts) found |= part;
    return found != 0;
#endif
}

template <int L>
inline Floats step(const float* a, const int16_t* powers, const Tile<L>& b, Floats c, const Arithmetic& how) {
    Shorts most = b.exponents[0] + powers[0];
    for (int k = 1; k < L; k++) {
        const Shorts e = b.exponents[k] + powers[k];
        most = e > most ? e : most;
    }
    Ints bits;
    std::memcpy(&bits, &c, sizeof bits);
    bits &= 0x7fffffff;
    Ints own = (bits >> 23) - 127;
    own = own < -126 ? own * 0 - 126 : own;
    own = bits == 0 ? own * 0 + ABSENT : own;
    Ints largest = __builtin_convertvector(most, Ints);
    largest = largest > own ? largest : own;
    largest = largest < -4000 ? largest * 0 : largest;  // nothing but zeros
    const Ints outside = (largest < LOW) | (largest > HIGH);
    const Ints up = (how.fraction - largest + 127) << 23, down = (largest - how.fraction + 127) << 23;
    Floats scale, unit;
    std::memcpy(&scale, &up, sizeof scale);
    std::memcpy(&unit, &down, sizeof unit);
    // Two sums, since 16 products of 25 bits and more do not fit in one.
    Ints even = __builtin_convertvector(c * scale, Ints), odd = even * 0;
    for (int k = 0; k < L; k += 2) {
        even += __builtin_convertvector(b.values[k] * a[k] * scale, Ints);
        odd += __builtin_convertvector(b.values[k + 1] * a[k + 1] * scale, Ints);
    }
    const Doubles sum = __builtin_convertvector(even, Doubles) + __builtin_convertvector(odd, Doubles);
    Floats result = __builtin_convertvector(sum * __builtin_convertvector(unit, Doubles), Floats);
    std::memcpy(&bits, &result, sizeof bits);
    bits &= how.mask;
    std::memcpy(&result, &bits, sizeof bits);
    if (somewhere(outside)) {
        for (int lane = 0; lane < LANES; lane++)
            if (outside[lane]) result[lane] = slow<L>(a, powers, b, lane, c[lane], how);
    }
    return result;
}

template <int L>
void chain(const Matrix& a, const Matrix& b, float* d, long m, long n, long k, const Arithmetic& how) {
    std::vector<float> values(m * k);
    std::vector<int16_t> powers(m * k);
    for (long i = 0; i < m; i++)
        for (long j = 0; j < k; j++) {
            values[i * k + j] = number(a, i, j);
            powers[i * k + j] = static_cast<int16_t>(exponent(values[i * k + j], a.least));
        }
    Tile<L> tile;
    Floats sums[ROWS];
    for (long n0 = 0; n0 < n; n0 += LANES) {
        const int count = static_cast<int>(n - n0 < LANES ? n - n0 : LANES);
        for (long m0 = 0; m0 < m; m0 += ROWS) {
            const long rows = m - m0 < ROWS ? m - m0 : ROWS;
            for (long i = 0; i < rows; i++) {
                sums[i] = Floats{};
                std::memcpy(&sums[i], d + (m0 + i) * n + n0, 4 * count);
            }
            for (long k0 = 0; k0 < k; k0 += L) {
                tile.load(b, k0, n0, count);
                for (long i = 0; i < rows; i++) {
                    const long at = (m0 + i) * k + k0;
                    sums[i] = step<L>(&values[at], &powers[at], tile, sums[i], how);
                }
            }
            for (long i = 0; i < rows; i++) std::memcpy(d + (m0 + i) * n + n0, &sums[i], 4 * count);
        }
    }
}

}  // namespace

// a [m, k], b [k, n] with strides, d [m, n] holding c and then the result. Returns 0, or 1 for a number of products
// that is not compiled.
extern "C" int moeparity_chain(
    const void* a, long a_row, long a_column, int a_bf16, int a_least, const void* b, long b_row, long b_column,
    int b_bf16, int b_least, float* d, long m, long n, long k, int products, int fraction, int floor, int32_t mask) {
    const Matrix left{a, a_row, a_column, a_bf16, a_least}, right{b, b_row, b_column, b_bf16, b_least};
    const Arithmetic how{fraction, floor, mask};
    std::fenv_t before;
    std::fegetenv(&before);
    std::fesetenv(FE_DFL_ENV);
    std::fesetround(FE_TOWARDZERO);
    int unknown = 0;
    switch (products) {
        case 4: chain<4>(left, right, d, m, n, k, how); break;
        case 8: chain<8>(left, right, d, m, n, k, how); break;
        case 16: chain<16>(left, right, d, m, n, k, how); break;
        case 32: chain<32>(left, right, d, m, n, k, how); break;
        default: unknown = 1;
    }
    std::fesetenv(&before);
    return unknown;
}
