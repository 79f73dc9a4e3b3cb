// What a process finds outside of itself: files, sockets, devices, processes, networks. Run in the place of berth-executor it
// says what the unit's walls alone leave in reach, a line each on standard error. Its arguments are folders to leave out.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int found;

// Folders that are not looked at, NULL behind the last.
static char **skipped;

static void find(const char *what, const char *name) {
    found++;
    fprintf(stderr, "outside: %s %s\n", what, name);
}

// Programs and libraries, which everybody may read, and what the kernel shows of it, looked at below.
static const char *const known[] = {"/usr", "/lib", "/lib64", "/bin", "/sbin", "/proc", "/sys"};

// Devices that hold nothing.
static const char *const empty[] = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "log"};

static int look(const char *path, const struct stat *is, int type, struct FTW *at) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(path, known[i]))
            return FTW_SKIP_SUBTREE;
    for (char **skip = skipped; *skip; skip++)
        if (!strcmp(path, *skip))
            return FTW_SKIP_SUBTREE;
    if (type == FTW_D || type == FTW_DNR || type == FTW_SL || type == FTW_NS)
        return FTW_CONTINUE;
    if (!strncmp(path, "/dev/", 5))
        for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
            if (!strcmp(path + at->base, empty[i]))
                return FTW_CONTINUE;
    if (S_ISSOCK(is->st_mode)) {
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        strncpy(name.sun_path, path, sizeof name.sun_path - 1);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&name, sizeof name) == 0)
            find("connects to", path);
        close(fd);
        return FTW_CONTINUE;
    }
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    if (fd >= 0)
        find("reads", path);
    close(fd);
    return FTW_CONTINUE;
}

static int is_number(const struct dirent *entry) { return entry->d_name[strspn(entry->d_name, "0123456789")] == 0; }

int main(int argc, char **argv) {
    char path[400];
    skipped = argv + (argc > 0);
    nftw("/", look, 64, FTW_PHYS | FTW_ACTIONRETVAL);
    struct dirent **all;
    int count = scandir("/proc", &all, is_number, NULL);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "/proc/%s/environ", all[i]->d_name);
        int fd = atoi(all[i]->d_name) == getpid() ? -1 : open(path, O_RDONLY);
        if (fd >= 0)
            find("reads", path);
        close(fd);
    }
    for (int family = 0; family < AF_MAX; family++)
        for (int type = SOCK_STREAM; type <= SOCK_RAW; type++) {
            int fd = socket(family, type, 0);
            snprintf(path, sizeof path, "%d of type %d", family, type);
            if (fd >= 0)
                find("has a socket of family", path);
            close(fd);
        }
    if (setuid(0) == 0)
        find("is", "root");
    fprintf(stderr, "outside: %d things\n", found);
    return 0;
}
