/* An allocator with fences, for test_fenced_memory.py: loaded by LD_PRELOAD in front of glibc.

   While it is on, each block lies alone on pages of its own, between two pages that cannot be touched:

       END     the block ends at the fence, as closely as the alignment that was asked for allows
       TIGHT   it ends at the fence to the byte, whatever was asked for (malloc and its kin keep 16 bytes)
       BEGIN   it begins at the fence

   An access across the fence is a SIGSEGV. The bytes that are left on the pages hold a pattern, which is checked
   when the block is freed: if they were written to, the process aborts and says where. Fresh blocks are filled
   with 0xFF, which is NaN for float and double. Pages of a freed block cannot be touched again, and addresses are
   not used twice, so every use after free is a SIGSEGV too.

   Fenced are all aligned requests (torch's tensors), the scratch arrays of numba's kernels (`fenced_numba_alloc`,
   which takes the place of NRT_MemInfo_alloc_aligned) and malloc, calloc and realloc from MALLOC_MIN bytes on. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define ARENA ((size_t)1 << 40) /* bytes of addresses; none of them is memory until a block needs it */
#define MALLOC_MIN ((size_t)256) /* bytes */
#define MALLOC_LIVE 8000         /* fenced blocks of malloc at a time: a process has some 65,000 mappings */
#define PATTERN 0xA5

enum { OFF, END, TIGHT, BEGIN };
enum { ALIGNED, MALLOC, NUMBA, KINDS };
enum { UNUSED, LIVE, FREED };

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* What is known of the block whose first byte is on a page; no other block is there. Eight bytes, because addresses
   are not used twice, so that there are millions of these. */
struct block {
    uint64_t size : 40, offset : 12; /* of the block, and of its first byte on the page */
    uint64_t state : 2, kind : 2;
};

static char *arena;
static struct block *blocks;
static atomic_size_t next_page;
static atomic_int mode;
static atomic_long counts[KINDS], live_mallocs;

static void fail(const char *what, const void *block, size_t size, long offset) {
    char text[200];
    int length = snprintf(text, sizeof text, "fenced memory: %s, block %p of %zu bytes, at byte %ld\n", what, block,
                          size, offset);
    (void)!write(2, text, (size_t)length);
    abort();
}

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static struct block *at(const void *p) { return &blocks[(size_t)((const char *)p - arena) / PAGE]; }

static void *fenced_alloc(size_t size, size_t alignment, int kind) {
    int where = atomic_load(&mode);
    if (where == TIGHT && kind != MALLOC) alignment = 1;
    size_t reach = round_up(size ? size : 1, where == BEGIN ? 1 : alignment);
    size_t span = round_up(reach, PAGE);
    size_t first = atomic_fetch_add(&next_page, span / PAGE + 1); /* and one page for the fence behind it */
    char *pages = arena + first * PAGE;
    if ((first + 1) * PAGE + span > ARENA) fail("no addresses are left", pages, size, 0);
    if (mprotect(pages, span, PROT_READ | PROT_WRITE)) fail("no pages to be had", pages, size, 0);
    char *block = where == BEGIN ? pages : pages + span - reach;
    memset(pages, PATTERN, (size_t)(block - pages));
    memset(block, 0xFF, size);
    memset(block + size, PATTERN, (size_t)(pages + span - block) - size);
    *at(block) = (struct block){size, (size_t)(block - pages), LIVE, (unsigned)kind};
    atomic_fetch_add(&counts[kind], 1);
    return block;
}

static int is_fenced(const void *p) { return arena && (size_t)((const char *)p - arena) < ARENA; }

static struct block *find(const void *p) {
    struct block *block = at(p);
    if (block->state == FREED) fail("freed twice", p, block->size, 0);
    if (block->state != LIVE || block->offset != (size_t)p % PAGE) fail("freed, but no block begins there", p, 0, 0);
    return block;
}

static void check(const char *from, const char *to, const char *start, size_t size) {
    for (; from < to; from++) {
        if ((unsigned char)*from != PATTERN) fail("written to outside of its bytes", start, size, from - start);
    }
}

static void fenced_free(void *p) {
    struct block *block = find(p);
    char *start = p, *pages = start - block->offset;
    size_t size = block->size, span = round_up(block->offset + (size ? size : 1), PAGE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    check(pages, start, start, size);
    check(start + size, pages + span, start, size);
    block->state = FREED;
    if (block->kind == MALLOC) atomic_fetch_sub(&live_mallocs, 1);
    if (mmap(pages, span, PROT_NONE, flags, -1, 0) == MAP_FAILED) fail("its pages cannot be returned", p, size, 0);
}

/* Whether malloc fences a request; too many live blocks at a time are left to glibc. */
static int wanted(size_t size) {
    if (!atomic_load_explicit(&mode, memory_order_relaxed) || size < MALLOC_MIN) return 0;
    if (atomic_fetch_add(&live_mallocs, 1) < MALLOC_LIVE) return 1;
    atomic_fetch_sub(&live_mallocs, 1);
    return 0;
}

/* What the test calls ------------------------------------------------------------------------------------------- */

/* Switch to a mode, OFF among them. Blocks stay as they were made. */
void fenced_mode(int wanted_mode) {
    if (!arena) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *addresses = mmap(NULL, ARENA, PROT_NONE, flags, -1, 0);
        blocks = mmap(NULL, ARENA / PAGE * sizeof *blocks, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (addresses == MAP_FAILED || blocks == MAP_FAILED) fail("no addresses to be had", NULL, ARENA, 0);
        atomic_store(&next_page, 1); /* the first page is a fence */
        arena = addresses;
    }
    atomic_store(&mode, wanted_mode);
}

/* How many blocks of a kind were fenced so far. */
long fenced_count(int kind) { return atomic_load(&counts[kind]); }

/* Arrays that numba's kernels make: the block is numba's data, and nothing else is on its pages. */
static void *(*manage_memory)(void *, void (*)(void *));
static void *(*numba_alloc)(size_t, unsigned);

void fenced_numba(void *manage, void *alloc) {
    manage_memory = (void *(*)(void *, void (*)(void *)))manage;
    numba_alloc = (void *(*)(size_t, unsigned))alloc;
}

void *fenced_numba_alloc(size_t size, unsigned alignment) {
    if (!atomic_load(&mode)) return numba_alloc(size, alignment);
    return manage_memory(fenced_alloc(size, alignment, NUMBA), fenced_free);
}

/* What takes the place of glibc's functions --------------------------------------------------------------------- */

void *malloc(size_t size) { return wanted(size) ? fenced_alloc(size, 16, MALLOC) : __libc_malloc(size); }

void free(void *p) {
    if (!is_fenced(p)) {
        __libc_free(p);
        return;
    }
    int error = errno;
    fenced_free(p);
    errno = error;
}

void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || !wanted(bytes)) return __libc_calloc(count, size);
    return memset(fenced_alloc(bytes, 16, MALLOC), 0, bytes);
}

void *realloc(void *p, size_t size) {
    if (!is_fenced(p)) return __libc_realloc(p, size);
    size_t before = find(p)->size;
    void *new = size ? malloc(size) : NULL;
    if (new) memcpy(new, p, before < size ? before : size);
    if (new || !size) free(p);
    return new;
}

void *memalign(size_t alignment, size_t size) {
    if (!atomic_load(&mode) || alignment > PAGE) return __libc_memalign(alignment, size);
    return fenced_alloc(size, alignment, ALIGNED);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **p, size_t alignment, size_t size) {
    if (alignment % sizeof(void *) || alignment & (alignment - 1) || !alignment) return EINVAL;
    void *block = memalign(alignment, size);
    if (!block) return ENOMEM;
    *p = block;
    return 0;
}

size_t malloc_usable_size(void *p) {
    static size_t (*glibc)(void *);
    if (is_fenced(p)) return find(p)->size;
    if (!glibc) glibc = (size_t(*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    return glibc(p);
}
