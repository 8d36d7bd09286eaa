/* Closes the region of isa_begin.h. */
#if defined(__clang__)
MOE_PRAGMA(clang attribute pop)
#else
MOE_PRAGMA(GCC pop_options)
#endif
