/* Which of the levels that x86-64 has are there: x86-64 psABI, "low-level system information", micro-architecture levels. */

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

#define ALL(bits, wanted) (((bits) & (wanted)) == (wanted))

static int has_level_2(void) {
    unsigned a, b, c, d;
    const unsigned wanted = bit_SSE3 | bit_SSSE3 | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT;
    return __get_cpuid(1, &a, &b, &c, &d) && ALL(c, wanted);
}

/* The system must keep the wide registers, too, when it goes from one thread to another. */
static int has_level_3(void) {
    unsigned a, b, c, d, low, high;
    if (!has_level_2() || !__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    if (!ALL(c, bit_AVX | bit_F16C | bit_FMA | bit_MOVBE | bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!ALL(low, 6u))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !ALL(b, bit_AVX2 | bit_BMI | bit_BMI2))
        return 0;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) && ALL(c, bit_LZCNT);
}
#endif
