#include "cuda.h"

#define TILE 16

// c = a * b, square matrices of n rows, n a multiple of TILE; blocks of TILE x TILE threads.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float as[TILE][TILE];
    __shared__ float bs[TILE][TILE];
    int x = TID_X, y = TID_Y;
    int row = CTAID_Y * TILE + y, column = CTAID_X * TILE + x;
    float sum = 0;
    for (int tile = 0; tile < n / TILE; tile++) {
        as[y][x] = a[row * n + tile * TILE + x];
        bs[y][x] = b[(tile * TILE + y) * n + column];
        SYNC();
        for (int k = 0; k < TILE; k++)
            sum = __builtin_fmaf(as[y][k], bs[k][x], sum);
        SYNC();
    }
    c[row * n + column] = sum;
}
