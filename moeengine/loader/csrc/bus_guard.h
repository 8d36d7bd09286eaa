/* What happens when a mapped file loses bytes while a thread reads them: a file that was cut, or a disk that
 * fails. The system then sends SIGBUS, which would end the process. For mappings that are registered here
 * the missing part reads as zeros instead, and the caller asks afterwards whether that happened. */
#ifndef MOE_BUS_GUARD_H
#define MOE_BUS_GUARD_H
#include <stddef.h>
#include <stdint.h>

/* Watch the mapping of n bytes at base. An index for the calls below, or -1: too many, it is not watched.
 * Other SIGBUS go to whoever handled them before. */
int moe_guard_add(void *base, size_t n);
void moe_guard_remove(int i);

/* Offset of the first page that could not be had since the last call, or -1. What lies behind it reads as zeros
 * until `moe_guard_heal`. */
int64_t moe_guard_take(int i);
/* Map the file anew at the same addresses, from `offset` on. 0 or errno. */
int moe_guard_heal(int i, int fd, int64_t offset);
#endif
