/* A libamdhip64 for tests: device memory is memory of the host, and kernels are run in C, by their names. What Berth passes is
 * checked: ranges are those of one allocation, memory of the host is pinned, and a code object is one for this GPU that has the
 * symbol of the kernel that is asked for. Work is done when it is waited for, and not before.
 *
 * Variables: HIP_TEST_ARCH, HIP_TEST_DEVICES, HIP_TEST_MEMORY (MiB). -DROCM5: without what ROCm 6 has. -DLACKS: without a function. */
#define _GNU_SOURCE
#include <elf.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, NO_BINARY = 209,
       NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };

struct range { struct range *next; char *at; size_t len; };

static struct range *memory, *pinned;
static size_t used;
static int lost, current = -1;

static const char *variable(const char *name, const char *otherwise) {
    const char *found = getenv(name);
    return found ? found : otherwise;
}

static int devices(void) { return atoi(variable("HIP_TEST_DEVICES", "2")); }
static const char *arch(void) { return variable("HIP_TEST_ARCH", "gfx90a:sramecc+:xnack-"); }
static size_t total(void) { return (size_t)atol(variable("HIP_TEST_MEMORY", "256")) << 20; }

static int within(struct range *ranges, const void *at, size_t len) {
    for (struct range *one = ranges; one; one = one->next)
        if ((char *)at >= one->at && len <= one->len && (size_t)((char *)at - one->at) <= one->len - len)
            return 1;
    return 0;
}

static void keep(struct range **ranges, void *at, size_t len) {
    struct range *one = malloc(sizeof *one);
    *one = (struct range){*ranges, at, len};
    *ranges = one;
}

/* What runs when it is waited for. */
typedef void (*body)(const char *arguments, const unsigned *grid, const unsigned *block);
struct function { char name[64]; size_t bytes; body run; };
static struct { struct function *function; char arguments[4096]; unsigned grid[3], block[3]; } pending;
static jmp_buf fault;

/* A kernel's access. */
static void *reach(const void *at, size_t len) {
    if (!within(memory, at, len))
        longjmp(fault, 1);
    return (void *)at;
}

#define ARGUMENT(type, offset) (*(type *)(arguments + (offset)))
#define EACH(axis, count) for (unsigned axis = 0; axis < (count); axis++)

static void vadd(const char *arguments, const unsigned *grid, const unsigned *block) {
    float *a = ARGUMENT(float *, 0), *b = ARGUMENT(float *, 8), *c = ARGUMENT(float *, 16);
    unsigned n = ARGUMENT(unsigned, 24);
    EACH(i, grid[0] * block[0])
        if (i < n)
            *(float *)reach(c + i, 4) = *(float *)reach(a + i, 4) + *(float *)reach(b + i, 4);
}

static void matmul(const char *arguments, const unsigned *grid, const unsigned *block) {
    float *a = ARGUMENT(float *, 0), *b = ARGUMENT(float *, 8), *c = ARGUMENT(float *, 16);
    unsigned n = ARGUMENT(unsigned, 24);
    EACH(y, grid[1] * block[1]) EACH(x, grid[0] * block[0]) {
        float sum = 0;
        EACH(k, n) sum += *(float *)reach(a + y * n + k, 4) * *(float *)reach(b + k * n + x, 4);
        *(float *)reach(c + y * n + x, 4) = sum;
    }
}

static void reduce(const char *arguments, const unsigned *grid, const unsigned *block) {
    int *in = ARGUMENT(int *, 0), *out = ARGUMENT(int *, 8);
    unsigned n = ARGUMENT(unsigned, 16);
    EACH(group, grid[0]) {
        int sum = 0;
        EACH(thread, block[0])
            if (group * block[0] + thread < n)
                sum += *(int *)reach(in + group * block[0] + thread, 4);
        *(int *)reach(out + group, 4) = sum;
    }
}

static void store(const char *arguments, const unsigned *grid, const unsigned *block) {
    *(unsigned *)reach(ARGUMENT(unsigned *, 0), 4) = 7;
}

/* As ROCm ends a program whose kernel traps, or strays on most GPUs. */
static void trap(const char *arguments, const unsigned *grid, const unsigned *block) { abort(); }

static void forever(const char *arguments, const unsigned *grid, const unsigned *block) {
    for (;;)
        usleep(1000);
}

static void slow(const char *arguments, const unsigned *grid, const unsigned *block) { usleep(100000); }

static void empty(const char *arguments, const unsigned *grid, const unsigned *block) {}

struct mixed { char tag; double value; short tail; };

static void mixed(const char *arguments, const unsigned *grid, const unsigned *block) {
    struct mixed m = ARGUMENT(struct mixed, 8);
    uint64_t *out = reach(ARGUMENT(uint64_t *, 40), 8);
    *out = ARGUMENT(char, 0) + m.tag + (uint64_t)m.value + m.tail + ARGUMENT(short, 32);
}

static const struct function KERNELS[] = {{"vadd", 28, vadd}, {"matmul", 28, matmul}, {"reduce", 20, reduce}, {"store", 8, store},
    {"trap", 8, trap}, {"forever", 8, forever}, {"slow", 8, slow}, {"empty", 0, empty}, {"mixed", 48, mixed}};

/* The number that e_flags has of a processor. */
static unsigned machine(void) {
    static const struct { const char *name; unsigned number; } ALL[] = {{"gfx906", 0x2f}, {"gfx90a", 0x3f}, {"gfx1030", 0x36}};
    for (int i = 0; i < 3; i++)
        if (!strncmp(arch(), ALL[i].name, strlen(ALL[i].name)))
            return ALL[i].number;
    return 0;
}

/* Whether a code object has a symbol. */
static int has(const char *elf, const char *wanted) {
    const Elf64_Ehdr *header = (const void *)elf;
    const Elf64_Shdr *sections = (const void *)(elf + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_DYNSYM) {
            const char *names = elf + sections[sections[i].sh_link].sh_offset;
            const Elf64_Sym *symbols = (const void *)(elf + sections[i].sh_offset);
            for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
                if (!strcmp(names + symbols[s].st_name, wanted))
                    return 1;
        }
    return 0;
}

const char *hipGetErrorName(int code) { return code == ILLEGAL_ADDRESS ? "hipErrorIllegalAddress" : code == NO_DEVICE ? "hipErrorNoDevice" : "hipErrorOther"; }
const char *hipGetErrorString(int code) { return code == NO_DEVICE ? "no ROCm-capable device is detected" : "another error"; }
int hipInit(unsigned flags) { return flags ? INVALID_VALUE : devices() ? OK : NO_DEVICE; }
int hipGetDeviceCount(int *count) { *count = devices(); return OK; }

int hipSetDevice(int device) {
    current = device;
    return device < devices() ? OK : INVALID_DEVICE;
}

int hipDeviceGetName(char *name, int len, int device) {
    snprintf(name, len, "AMD Instinct Test %d", device);
    return OK;
}

int hipDeviceGetPCIBusId(char *address, int len, int device) {
    snprintf(address, len, "0000:%02x:00.0", 3 + device);
    return OK;
}

int hipDeviceTotalMem(size_t *bytes, int device) {
    *bytes = total();
    return OK;
}

int hipDeviceGetAttribute(int *value, int attribute, int device) {
    static const int ALL[][2] = {{23, 9}, {26, 1024}, {27, 1024}, {28, 64}, {29, 0x7fffffff}, {30, 65535}, {31, 65535}, {56, 1024},
        {57, 2048}, {61, 0}, {63, 104}, {74, 65536}, {87, 64}};
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (ALL[i][0] == attribute)
            return *value = ALL[i][1], OK;
#ifndef ROCM5
    if (attribute == 25)
        return *value = 16, OK;
#endif
    return INVALID_VALUE;
}

static int properties(char *at, size_t len, size_t arch_name) {
    memset(at, 0x7a, len);
    strcpy(at, "a name");
    strcpy(at + arch_name, arch());
    return OK;
}

int hipGetDeviceProperties(char *at, int device) { return properties(at, 792, 396); }
#ifndef ROCM5
int hipGetDevicePropertiesR0600(char *at, int device) { return properties(at, 1472, 1160); }
#endif

int hipHostRegister(void *at, size_t len, unsigned flags) {
    keep(&pinned, at, len);
    return flags == 3 && !((uintptr_t)at % 4096) ? OK : INVALID_VALUE;
}

int hipMalloc(void **at, size_t len) {
    if (lost || current < 0)
        return lost ? lost : INVALID_DEVICE;
    if (len > total() - used)
        return OUT_OF_MEMORY;
    /* Whatever was there before. */
    *at = memset(aligned_alloc(4096, (len + 4095) & ~4095UL), 0x5a, len);
    keep(&memory, *at, len);
    used += len;
    return OK;
}

int hipFree(void *at) {
    for (struct range **one = &memory; *one; one = &(*one)->next)
        if ((*one)->at == at) {
            used -= (*one)->len;
            *one = (*one)->next;
            free(at);
            return lost;
        }
    return INVALID_VALUE;
}

int hipMemset(void *at, int value, size_t len) {
    if (lost || !within(memory, at, len))
        return lost ? lost : INVALID_VALUE;
    memset(at, value, len);
    return OK;
}

int hipMemcpyHtoD(void *to, void *from, size_t len) {
    if (lost || !within(memory, to, len) || !within(pinned, from, len))
        return lost ? lost : INVALID_VALUE;
    memcpy(to, from, len);
    return OK;
}

int hipMemcpyDtoH(void *to, void *from, size_t len) {
    if (lost || !within(memory, from, len) || !within(pinned, to, len))
        return lost ? lost : INVALID_VALUE;
    memcpy(to, from, len);
    return OK;
}

#ifndef LACKS
int hipMemcpy2D(char *to, size_t dpitch, const char *from, size_t spitch, size_t width, size_t height, int kind) {
    if (lost)
        return lost;
    if (kind != 3 || width > dpitch || width > spitch)
        return INVALID_VALUE;
    for (; height; height--, to += dpitch, from += spitch) {
        /* Rows that overlap are undefined. */
        if (!within(memory, to, width) || !within(memory, from, width) || (to < from + width && from < to + width))
            return INVALID_VALUE;
        memcpy(to, from, width);
    }
    return OK;
}
#endif

int hipModuleLoadData(void **module, const void *image) {
    const Elf64_Ehdr *header = image;
    if (lost)
        return lost;
    if (memcmp(image, ELFMAG, 4) || header->e_machine != 224 || (header->e_flags & 0xff) != machine())
        return NO_BINARY;
    *module = (void *)image;
    return OK;
}

int hipModuleUnload(void *module) { return lost; }

int hipModuleGetFunction(struct function **function, void *module, const char *name) {
    char symbol[80];
    snprintf(symbol, sizeof symbol, "%s.kd", name);
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (!strcmp(KERNELS[i].name, name) && has(module, symbol))
            return *function = (struct function *)&KERNELS[i], OK;
    return NOT_FOUND;
}

int hipModuleLaunchKernel(struct function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra) {
    if (lost)
        return lost;
    if (params || stream || extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != (void *)3
        || *(size_t *)extra[3] != function->bytes)
        return INVALID_VALUE;
    memcpy(pending.arguments, extra[1], function->bytes);
    pending.function = function;
    memcpy(pending.grid, (unsigned[]){gx, gy, gz}, 12);
    memcpy(pending.block, (unsigned[]){bx, by, bz}, 12);
    return OK;
}

int hipDeviceSynchronize(void) {
    struct function *function = pending.function;
    pending.function = NULL;
    if (!function || lost)
        return lost;
    if (setjmp(fault))
        lost = ILLEGAL_ADDRESS;
    else
        function->run(pending.arguments, pending.grid, pending.block);
    return lost;
}
