/* Adds two vectors on a GPU: by a module, by a graph, and by a stub as a compiler of HIP makes it. argv[1] is vadd.ptx. */
#include "hip.h"

enum { N = 1000 };

static float a[N], b[N], c[N];

/* What a compiler puts into the program for `vadd<<<..>>>(..)`. */
static struct { uint32_t magic, version; const void *binary, *unused; } wrapper = {0x48495046, 1, NULL, NULL};

static int stub(const float *x, const float *y, float *z, unsigned n) {
    dim3 grid, block;
    size_t shared;
    hipStream_t stream;
    void *arguments[] = {&x, &y, &z, &n};
    OK(__hipPopCallConfiguration(&grid, &block, &shared, &stream));
    return hipLaunchKernel((const void *)stub, grid, block, arguments, shared, stream);
}

static char *contents(const char *path) {
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    char *text = calloc(1, 1 << 20);
    CHECK(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static void is_sum(float *on_device, float factor) {
    memset(c, 0, sizeof c);
    OK(hipMemcpy(c, on_device, sizeof c, byAddress));
    for (int i = 0; i < N; i++)
        CHECK(c[i] == factor * (a[i] + b[i]));
}

int main(int argc, char **argv) {
    int count, device = 7;
    char properties[1472];
    CHECK(argc == 2);
    OK(hipInit(0));
    OK(hipGetDeviceCount(&count));
    CHECK(count >= 1);
    OK(hipGetDevice(&device));
    CHECK(device == 0);
    OK(hipGetDevicePropertiesR0600(properties, 0));
    CHECK(strcmp(properties + 1160, "berth-ptx") == 0);  /* gcnArchName */
    CHECK(*(int *)(properties + 308) == 32);             /* warpSize */

    for (int i = 0; i < N; i++) {
        a[i] = (float)i;
        b[i] = 0.5f * (float)i;
    }
    float *x, *y, *z;
    OK(hipMalloc((void **)&x, sizeof a));
    OK(hipMalloc((void **)&y, sizeof b));
    OK(hipMalloc((void **)&z, sizeof c));
    OK(hipMemcpy(x, a, sizeof a, hostToDevice));
    OK(hipMemcpy(y, b, sizeof b, byAddress));

    hipModule_t module;
    hipFunction_t vadd;
    OK(hipModuleLoad(&module, argv[1]));
    OK(hipModuleGetFunction(&vadd, module, "vadd"));
    unsigned n = N;
    void *arguments[] = {&x, &y, &z, &n};
    OK(hipModuleLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL));
    is_sum(z, 1);
    struct { float *x, *y, *z; unsigned n; } packed = {z, z, z, N};
    size_t size = 28;
    void *extra[] = {(void *)1, &packed, (void *)2, &size, (void *)3};
    OK(hipModuleLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, NULL, NULL, extra));
    is_sum(z, 2);

    hipStream_t stream;
    hipEvent_t begin, end;
    hipGraph_t graph;
    hipGraphExec_t exec;
    OK(hipStreamCreate(&stream));
    OK(hipEventCreate(&begin));
    OK(hipEventCreate(&end));
    OK(hipMemset(z, 0, sizeof c));
    OK(hipStreamBeginCapture(stream, 0));
    OK(hipModuleLaunchKernel(vadd, 4, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
    int is_capturing = 0;
    OK(hipStreamIsCapturing(stream, &is_capturing));
    CHECK(is_capturing == 1);
    OK(hipStreamEndCapture(stream, &graph));
    is_sum(z, 0);
    OK(hipGraphInstantiate(&exec, graph, NULL, NULL, 0));
    OK(hipGraphDestroy(graph));
    OK(hipEventRecord(begin, stream));
    OK(hipGraphLaunch(exec, stream));
    OK(hipEventRecord(end, stream));
    OK(hipEventSynchronize(end));
    float milliseconds = -1;
    OK(hipEventElapsedTime(&milliseconds, begin, end));
    CHECK(milliseconds >= 0);
    is_sum(z, 1);
    OK(hipGraphExecDestroy(exec));
    OK(hipEventDestroy(begin));
    OK(hipEventDestroy(end));
    OK(hipStreamDestroy(stream));
    OK(hipModuleUnload(module));

    wrapper.binary = contents(argv[1]);
    void **registered = __hipRegisterFatBinary(&wrapper);
    __hipRegisterFunction(registered, (const void *)stub, "vadd", "vadd", -1u, NULL, NULL, NULL, NULL, NULL);
    for (device = 0; device < count; device++) {
        OK(hipSetDevice(device));
        OK(hipMalloc((void **)&x, sizeof a));
        OK(hipMalloc((void **)&y, sizeof b));
        OK(hipMalloc((void **)&z, sizeof c));
        OK(hipMemcpy(x, a, sizeof a, hostToDevice));
        OK(hipMemcpy(y, b, sizeof b, hostToDevice));
        OK(__hipPushCallConfiguration((dim3){4, 1, 1}, (dim3){256, 1, 1}, 0, NULL));
        OK(stub(x, y, z, N));
        OK(hipDeviceSynchronize());
        is_sum(z, 1);
        struct { int type, device; void *on_device, *on_host; int managed; unsigned flags; } attributes;
        OK(hipPointerGetAttributes(&attributes, z + 1));
        CHECK(attributes.type == 2 && attributes.device == device && attributes.on_device == z + 1);
        OK(hipFree(x));
        OK(hipFree(y));
        OK(hipFree(z));
    }
    __hipUnregisterFatBinary(registered);
    IS(hipLaunchKernel((const void *)stub, (dim3){1, 1, 1}, (dim3){1, 1, 1}, arguments, 0, NULL), 98);

    /* Rows: a frame of nines around what is copied, which nobody touches. */
    char *rows, from[5 * 8], to[5 * 8];
    size_t pitch;
    OK(hipMallocPitch((void **)&rows, &pitch, 6, 5));
    CHECK(pitch == 256);
    for (int i = 0; i < 40; i++)
        from[i] = (char)i;
    memset(to, 9, sizeof to);
    OK(hipMemset2D(rows, pitch, 3, 6, 5));
    OK(hipMemcpy2D(rows, pitch, from, 8, 6, 4, hostToDevice));
    OK(hipMemcpy2D(to, 8, rows, pitch, 6, 5, deviceToHost));
    for (int i = 0; i < 40; i++)
        CHECK(to[i] == (i % 8 >= 6 ? 9 : i / 8 == 4 ? 3 : from[i]));
    OK(hipDeviceReset());
    IS(hipFree(rows), 17);
    puts("verified");
    return 0;
}
