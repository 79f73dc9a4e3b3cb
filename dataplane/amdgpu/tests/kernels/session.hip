// Kernels of the tests, for clang's AMDGPU back end. No header and no library of HIP is needed.

#define KERNEL extern "C" __attribute__((global))

static inline __attribute__((device)) unsigned index() {
    return __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() + __builtin_amdgcn_workitem_id_x();
}

KERNEL void vadd(const float *a, const float *b, float *c, unsigned n) {
    unsigned i = index();
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}

KERNEL void matmul(const float *a, const float *b, float *c, unsigned n) {
    unsigned x = index();
    unsigned y = __builtin_amdgcn_workgroup_id_y() * __builtin_amdgcn_workgroup_size_y() + __builtin_amdgcn_workitem_id_y();
    float sum = 0;
    for (unsigned k = 0; k < n; k++) {
        sum += a[y * n + k] * b[k * n + x];
    }
    c[y * n + x] = sum;
}

KERNEL void reduce(const int *in, int *out, unsigned n) {
    unsigned threads = __builtin_amdgcn_workgroup_size_x();
    if (__builtin_amdgcn_workitem_id_x() == 0) {
        int sum = 0;
        unsigned first = __builtin_amdgcn_workgroup_id_x() * threads;
        for (unsigned i = first; i < n && i < first + threads; i++) {
            sum += in[i];
        }
        out[__builtin_amdgcn_workgroup_id_x()] = sum;
    }
}

KERNEL void store(unsigned *p) {
    *p = 7;
}

KERNEL void trap(unsigned *p) {
    __builtin_trap();
}

KERNEL void forever(volatile unsigned *p) {
    for (;;) {
        *p;
    }
}

KERNEL void slow(unsigned *p) {
    for (int i = 0; i < 100000; i++) {
        __builtin_amdgcn_s_sleep(127);
    }
}

KERNEL void empty() {}

// Sizes and places of all kinds.
struct Mixed {
    char tag;
    double value;
    short tail;
};

// It asks for what the driver adds to the arguments, of which the first is 0.
KERNEL void mixed(char a, Mixed m, short b, unsigned long *out) {
    auto hidden = (const __attribute__((address_space(4))) unsigned long *)__builtin_amdgcn_implicitarg_ptr();
    *out = *hidden + a + m.tag + (unsigned long)m.value + m.tail + b;
}
