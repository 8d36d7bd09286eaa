/* Which instruction sets are compiled in, and which of them this CPU and this kernel allow. */
#define _GNU_SOURCE
#include "moe_table.h"

#include <stdio.h>
#include <string.h>

extern const moe_isa moe_isa_scalar, moe_isa_avx2, moe_isa_avx512;
extern moe_isa moe_isa_amx, moe_isa_amx_emulated; /* filled when the library is loaded */

const moe_isa *const moe_isa_list[] = {
#if defined(__x86_64__)
#if MOE_HAS_AMX
    &moe_isa_amx,
#endif
    &moe_isa_amx_emulated,
    &moe_isa_avx512,
    &moe_isa_avx2,
#endif
    &moe_isa_scalar,
    NULL,
};

#if defined(__x86_64__)
#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

enum reg { EAX, EBX, ECX, EDX };
/* Bits of XCR0: the register state that the operating system saves. */
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* Names as in the compilers' target lists. Source: Intel SDM volume 2A, CPUID. */
static const struct feature {
    const char *name;
    unsigned leaf, subleaf;
    enum reg reg;
    int bit;
    unsigned xcr0;
} FEATURES[] = {
    {"popcnt", 1, 0, ECX, 23, 0},
    {"fma", 1, 0, ECX, 12, XCR0_AVX},
    {"f16c", 1, 0, ECX, 29, XCR0_AVX},
    {"bmi", 7, 0, EBX, 3, 0},
    {"avx2", 7, 0, EBX, 5, XCR0_AVX},
    {"bmi2", 7, 0, EBX, 8, 0},
    {"avx512f", 7, 0, EBX, 16, XCR0_AVX512},
    {"avx512dq", 7, 0, EBX, 17, XCR0_AVX512},
    {"avx512ifma", 7, 0, EBX, 21, XCR0_AVX512},
    {"avx512cd", 7, 0, EBX, 28, XCR0_AVX512},
    {"avx512bw", 7, 0, EBX, 30, XCR0_AVX512},
    {"avx512vl", 7, 0, EBX, 31, XCR0_AVX512},
    {"avx512vbmi", 7, 0, ECX, 1, XCR0_AVX512},
    {"avx512vbmi2", 7, 0, ECX, 6, XCR0_AVX512},
    {"gfni", 7, 0, ECX, 8, 0},
    {"avx512vnni", 7, 0, ECX, 11, XCR0_AVX512},
    {"avx512bitalg", 7, 0, ECX, 12, XCR0_AVX512},
    {"avx512vpopcntdq", 7, 0, ECX, 14, XCR0_AVX512},
    {"amx-bf16", 7, 0, EDX, 22, XCR0_AMX},
    {"avx512fp16", 7, 0, EDX, 23, XCR0_AVX512},
    {"amx-tile", 7, 0, EDX, 24, XCR0_AMX},
    {"amx-int8", 7, 0, EDX, 25, XCR0_AMX},
    {"avxvnni", 7, 1, EAX, 4, XCR0_AVX},
    {"avx512bf16", 7, 1, EAX, 5, XCR0_AVX512},
};

static unsigned cpuid_reg(const struct feature *f) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(f->leaf, f->subleaf, &a, &b, &c, &d)) return 0;
    return f->reg == EAX ? a : f->reg == EBX ? b : f->reg == ECX ? c : d;
}

static unsigned read_xcr0(void) {
    unsigned a, b, c, d, lo, hi;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* no OSXSAVE */
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

/* Linux gives tile registers to a process that asks: to all its threads and to its children by fork. Refused where a
 * thread's alternate signal stack is too small for them; once they are given, no thread gets one that is.
 * (Documentation/arch/x86/xstate.rst) */
static int ask_for_tiles(const char **why) {
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0) return 1;
    *why = errno == ENOSPC ? ": the alternate signal stack of a thread is too small" : ": refused to this process";
    return 0;
}

/* why: "", or set to the text of a reason that is not the CPU's */
static int has_feature(const char *name, size_t len, const char **why) {
    for (size_t i = 0; i < sizeof FEATURES / sizeof *FEATURES; i++) {
        const struct feature *f = &FEATURES[i];
        if (strlen(f->name) != len || memcmp(f->name, name, len) != 0) continue;
        if (!(cpuid_reg(f) >> f->bit & 1) || (read_xcr0() & f->xcr0) != f->xcr0) return 0;
        return f->xcr0 != XCR0_AMX || ask_for_tiles(why);
    }
    return 0; /* a name that is not known counts as missing */
}
#else
static int has_feature(const char *name, size_t len, const char **why) {
    (void)name, (void)len, (void)why;
    return 0;
}
#endif

int moe_has_fp16(void) {
    static const char name[] = "avx512fp16";
    const char *why;
    return has_feature(name, strlen(name), &why);
}

const char *moe_isa_problem(const moe_isa *isa) {
    static char text[128];
    for (const char *p = isa->features; *p;) {
        const char *why = "";
        size_t len = strcspn(p, ",");
        if (!has_feature(p, len, &why)) {
            snprintf(text, sizeof text, "this CPU or system does not offer %.*s%s", (int)len, p, why);
            return text;
        }
        p += len + (p[len] == ',');
    }
    const char *wrong = isa->check && !isa->for_tests ? isa->check() : NULL;
    if (!wrong) return NULL;
    snprintf(text, sizeof text, "its products of %s differ from those of avx512", wrong);
    return text;
}
