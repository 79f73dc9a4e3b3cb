#include "cuda.h"

extern "C" __global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = CTAID_X * NTID_X + TID_X;
    if (i < n)
        c[i] = a[i] + b[i];
}
