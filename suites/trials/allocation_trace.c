// Counts the bytes that a process has allocated, and their peak. Preloaded: LD_PRELOAD=allocation_trace.so.
// Replaces the allocation functions of glibc, and mmap for anonymous memory; sizes are those that glibc reserves.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_llong current, highest;

static void add(long long bytes) {
    long long now = atomic_fetch_add(&current, bytes) + bytes, before = atomic_load(&highest);
    while (now > before && !atomic_compare_exchange_weak(&highest, &before, now)) {}
}

static void *counted(void *block) {
    if (block) add((long long)malloc_usable_size(block));
    return block;
}

// The present number of bytes, from which the next peak is counted.
long long trace_reset(void) {
    long long now = atomic_load(&current);
    atomic_store(&highest, now);
    return now;
}

long long trace_peak(void) { return atomic_load(&highest); }

long long trace_current(void) { return atomic_load(&current); }

void *malloc(size_t size) { return counted(__libc_malloc(size)); }

void *calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }

void *memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }

void *aligned_alloc(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }

int posix_memalign(void **result, size_t alignment, size_t size) {
    void *block = counted(__libc_memalign(alignment, size));
    if (!block) return ENOMEM;
    *result = block;
    return 0;
}

void *realloc(void *block, size_t size) {
    long long before = block ? (long long)malloc_usable_size(block) : 0;
    void *moved = __libc_realloc(block, size);
    if (moved) add((long long)malloc_usable_size(moved) - before);
    else if (!size) add(-before);
    return moved;
}

void free(void *block) {
    if (block) add(-(long long)malloc_usable_size(block));
    __libc_free(block);
}

// Never subtracted, because munmap does not tell what was mapped: a peak is not too low.
void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    void *block = (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
    if (block != MAP_FAILED && (flags & MAP_ANONYMOUS) && (protection & PROT_WRITE)) add((long long)length);
    return block;
}
