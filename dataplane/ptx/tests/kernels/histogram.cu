#include "cuda.h"

// How often each byte occurs: counted in shared memory, then added up in global memory.
extern "C" __global__ void histogram(const unsigned char *bytes, int n, int *counts) {
    __shared__ int own[256];
    for (int i = TID_X; i < 256; i += NTID_X)
        own[i] = 0;
    SYNC();
    for (int i = CTAID_X * NTID_X + TID_X; i < n; i += NCTAID_X * NTID_X)
        __nvvm_atom_add_gen_i((int *)&own[bytes[i]], 1);
    SYNC();
    for (int i = TID_X; i < 256; i += NTID_X)
        if (own[i])
            __nvvm_atom_add_gen_i(&counts[i], own[i]);
}
