/* What a program does wrong, and what it is told. argv[1] is "none" where there is no worker, "killed" where the worker is
   killed when this says so, and vadd.ptx where it serves. */
#include "hip.h"

static void no_worker(void) {
    int count = 5;
    void *at = &count;
    hipStream_t stream;
    IS(hipGetDeviceCount(&count), 100);
    CHECK(count == 0);
    IS(hipInit(0), 100);
    IS(hipMalloc(&at, 16), 100);
    CHECK(at == &count);
    IS(hipStreamCreate(&stream), 100);
    IS(hipDeviceSynchronize(), 100);
    IS(hipGetLastError(), 100);
    IS(hipGetLastError(), 0);
    OK(hipFree(NULL));
    CHECK(strcmp(hipGetErrorName(100), "hipErrorNoDevice") == 0);
    CHECK(strcmp(hipGetErrorName(12345), "hipErrorUnknown") == 0);
}

static void killed(void) {
    void *at;
    char byte = 1, line[16];
    hipStream_t stream;
    hipEvent_t event;
    OK(hipMalloc(&at, 4096));
    OK(hipStreamCreate(&stream));
    OK(hipEventCreate(&event));
    OK(hipMemset(at, 7, 4096));
    OK(hipDeviceSynchronize());
    puts("kill it");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    /* Calls that are not waited for go on until what is collected is sent twice. */
    int code = 0;
    for (int i = 0; i < 100000 && code == 0; i++)
        code = hipMemset(at, i, 4096);
    if (code == 0)
        code = hipDeviceSynchronize();
    IS(code, 709);
    IS(hipPeekAtLastError(), 709);
    /* All that was of the session is gone, without asking anybody. */
    IS(hipMemset(at, 1, 1), 17);
    IS(hipFree(at), 17);
    IS(hipMemcpy(&byte, at, 1, deviceToHost), 17);
    IS(hipStreamSynchronize(stream), 400);
    IS(hipEventRecord(event, NULL), 400);
    puts("gone");
    fflush(stdout);
    IS(hipMalloc(&at, 16), 100);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    /* Another worker, the same address. */
    OK(hipMalloc(&at, 16));
    OK(hipMemset(at, 5, 16));
    OK(hipMemcpy(&byte, (char *)at + 15, 1, deviceToHost));
    CHECK(byte == 5);
    IS(hipStreamDestroy(stream), 400);
}

static void wrong(const char *ptx) {
    int value;
    char host[64] = {0};
    void *at, *other, *pinned;
    hipStream_t stream;
    hipEvent_t event;
    hipModule_t module;
    hipFunction_t vadd;
    OK(hipMalloc(&at, 64));
    OK(hipMalloc(&other, 1000));
    OK(hipHostMalloc(&pinned, 100, 0));
    OK(hipStreamCreate(&stream));
    OK(hipEventCreate(&event));

    /* Null. */
    IS(hipMalloc(NULL, 1), 1);
    IS(hipGetDeviceCount(NULL), 1);
    IS(hipGetDevicePropertiesR0600(NULL, 0), 1);
    IS(hipDeviceGetName(NULL, 10, 0), 1);
    IS(hipDeviceGetName(host, 0, 0), 1);
    IS(hipStreamCreate(NULL), 1);
    IS(hipEventCreate(NULL), 1);
    IS(hipModuleLoad(NULL, ptx), 1);
    IS(hipModuleLoad(&module, NULL), 1);
    IS(hipModuleLoad(&module, "/no/such/file"), 301);
    IS(hipModuleLoadData(&module, NULL), 1);
    IS(hipMemcpy(NULL, host, 1, hostToDevice), 1);
    IS(hipMemcpy(at, NULL, 1, hostToDevice), 1);
    IS(hipMemcpy(NULL, NULL, 0, hostToDevice), 0);
    IS(hipMemset(NULL, 0, 1), 17);
    IS(hipMemGetInfo(NULL, NULL), 1);
    IS(hipPointerGetAttributes(NULL, at), 1);
    IS(hipPointerGetAttributes(host, &value), 1);
    OK(hipFree(NULL));
    OK(hipHostFree(NULL));

    /* Wrong addresses, sizes, directions. */
    IS(hipMemset(at, 0, 65), 1);
    IS(hipMemset((char *)at + 64, 0, 1), 17);
    IS(hipMemset((char *)at + 60, 0, (size_t)-1), 1);
    IS(hipMemcpy(host, (char *)other + 999, 2, deviceToHost), 1);
    IS(hipMemcpy(at, host, 1, 5), 21);
    IS(hipMemcpy(host, &value, 1, deviceToHost), 17);
    IS(hipMemcpy2D(at, 4, host, 4, 8, 1, hostToDevice), 12);
    IS(hipMemcpy2D(at, (size_t)-1, host, 8, 8, 3, hostToDevice), 1);
    IS(hipMemset2D(at, (size_t)1 << 63, 0, 8, 3), 1);
    IS(hipFree((char *)at + 1), 17);
    IS(hipHostFree((char *)pinned + 1), 1);
    IS(hipMalloc(&pinned, (size_t)1 << 50), 2);
    IS(hipGetLastError(), 2);
    IS(hipSetDevice(2), 101);
    IS(hipSetDevice(-1), 101);
    IS(hipDeviceGetAttribute(&value, 1 << 20, 0), 1);

    /* Wrong handles. */
    IS(hipStreamSynchronize((hipStream_t)event), 400);
    IS(hipEventRecord((hipEvent_t)stream, NULL), 400);
    IS(hipEventRecord(event, (hipStream_t)event), 400);
    IS(hipStreamWaitEvent(stream, (hipEvent_t)0x1234, 0), 400);
    IS(hipModuleUnload((hipModule_t)stream), 400);
    IS(hipGraphLaunch((hipGraphExec_t)event, NULL), 400);
    IS(hipMemsetAsync(at, 0, 1, (hipStream_t)0x55), 400);
    IS(hipStreamDestroy(NULL), 400);

    /* Twice. */
    OK(hipFree(at));
    IS(hipFree(at), 17);
    IS(hipMemcpy(host, at, 1, deviceToHost), 17);
    OK(hipStreamDestroy(stream));
    IS(hipStreamDestroy(stream), 400);
    OK(hipEventDestroy(event));
    IS(hipEventDestroy(event), 400);

    /* Code objects, and launches. */
    IS(hipModuleLoadData(&module, "no code object"), 200);
    OK(hipModuleLoad(&module, ptx));
    IS(hipModuleGetFunction(&vadd, module, "none"), 500);
    IS(hipModuleGetFunction(&vadd, module, ""), 500);
    IS(hipModuleGetFunction(&vadd, module, NULL), 1);
    OK(hipModuleGetFunction(&vadd, module, "vadd"));
    unsigned n = 4;
    void *arguments[] = {&other, &other, &other, &n}, *missing[] = {&other, NULL, &other, &n};
    void *extra[] = {(void *)9, NULL, (void *)3};
    IS(hipModuleLaunchKernel(vadd, 1, 1, 1, 4, 1, 1, 0, NULL, NULL, NULL), 1);
    IS(hipModuleLaunchKernel(vadd, 1, 1, 1, 4, 1, 1, 0, NULL, missing, NULL), 1);
    IS(hipModuleLaunchKernel(vadd, 1, 1, 1, 4, 1, 1, 0, NULL, NULL, extra), 1);
    IS(hipModuleLaunchKernel(vadd, 1, 1, 1, 4, 1, 1, 0, NULL, arguments, extra), 1);
    IS(hipModuleLaunchKernel((hipFunction_t)module, 1, 1, 1, 4, 1, 1, 0, NULL, arguments, NULL), 400);
    /* What a launch does wrong is told later, once. */
    void *nowhere = host;
    arguments[2] = &nowhere;
    OK(hipModuleLaunchKernel(vadd, 1, 1, 1, 4, 1, 1, 0, NULL, arguments, NULL));
    IS(hipDeviceSynchronize(), 700);
    OK(hipDeviceSynchronize());
    OK(hipModuleLaunchKernel(vadd, 0, 1, 1, 4, 1, 1, 0, NULL, arguments, NULL));
    IS(hipMemcpy(host, other, 1, deviceToHost), 9);
    OK(hipModuleUnload(module));
    IS(hipModuleLaunchKernel(vadd, 1, 1, 1, 4, 1, 1, 0, NULL, arguments, NULL), 400);
    IS(hipModuleGetFunction(&vadd, module, "vadd"), 400);
    OK(hipDeviceSynchronize());
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "none") == 0)
        no_worker();
    else if (strcmp(argv[1], "killed") == 0)
        killed();
    else
        wrong(argv[1]);
    puts("verified");
    return 0;
}
