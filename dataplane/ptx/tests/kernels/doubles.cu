#include "cuda.h"

// One step of Newton's method for a square root, and Horner's rule, in f64.
extern "C" __global__ void doubles(const double *x, double *roots, double *polynomials, int *rounded, int n) {
    int i = CTAID_X * NTID_X + TID_X;
    if (i >= n)
        return;
    double guess = x[i] / 2 + 0.5;
    for (int step = 0; step < 40; step++)
        guess = (guess + x[i] / guess) / 2;
    roots[i] = guess;
    double sum = 0;
    for (int k = 8; k > 0; k--)
        sum = sum * x[i] + 1.0 / k;
    polynomials[i] = x[i] > 1 ? -sum : sum;
    rounded[i] = (int)(x[i] * 1000) + (int)(float)sum;
}
