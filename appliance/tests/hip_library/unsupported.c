/* Finds each function that is named in a line of the input, and calls it twice. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "hip.h"

int main(int argc, char **argv) {
    char name[256];
    int found = 0;
    CHECK(argc == 2);
    void *library = dlopen(argv[1], RTLD_NOW);
    CHECK(library != NULL);
    while (scanf("%255s", name) == 1) {
        int (*function)(void) = (int (*)(void))dlsym(library, name);
        if (function == NULL) {
            fprintf(stderr, "there is no %s\n", name);
            return 1;
        }
        IS(function(), 801);
        IS(function(), 801);
        found++;
    }
    IS(hipGetLastError(), 0);
    printf("%d verified\n", found);
    return 0;
}
