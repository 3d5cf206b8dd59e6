/*
 * The two programs of a session container that are not Python, in one static binary.
 *
 *   supervisor init [ARG...]
 *       The container's first program. Adds a seccomp filter to the one the container was
 *       started with and becomes the helper (same pid): Python, run by the toolbox's own
 *       loader. What this kernel can't do, the helper is told by arguments before its own:
 *       --seccomp=off where it takes no filter, --subreaper=off where orphans of a call go
 *       to pid 1 instead of the call's supervisor (gVisor before 2023).
 *
 *   supervisor call STATUS_FD WHO CWD PROGRAM [ARG...]
 *       Parent of one call. Runs PROGRAM in CWD with this process's environment and its
 *       descriptors 0, 1, 2 (no others), in a session of its own; adopts and reaps whatever
 *       the program leaves behind, and ends when nothing of it is left. It runs on every
 *       call, so it does little and allocates nothing.
 *
 *       WHO is `-` for whoever runs this, or `UID:GID[:GROUP...]` where this is root: then
 *       the program is that user's and has no capability; with a `+` before it, it keeps them.
 *
 * What `call` says on STATUS_FD: see `struct record`.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT "/.runner"

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#define LOADER ROOT "/lib/ld-linux-x86-64.so.2"
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#define LOADER ROOT "/lib/ld-linux-aarch64.so.1"
#else
#error "no system call table for this architecture"
#endif

#define X32_SYSCALL_BIT 0x40000000

enum { USAGE_ERROR = 125, NOTHING_RAN = 127 };

/* All writes here are small and say something to whoever listens; nobody may. */
static void say(int fd, const void *message, size_t bytes)
{
    ssize_t ignored = write(fd, message, bytes);
    (void)ignored;
}
#define COMPLAIN(message) say(2, message, sizeof message - 1)

/* One comparison and its answer: no jump in the filter is longer than one instruction. */
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, (value))
#define REFUSE(error) ANSWER(SECCOMP_RET_ERRNO | (error))
#define IF_EQUAL(value, error) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, 1), REFUSE(error)
#define IF_ANY_BIT(value, error) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (value), 0, 1), REFUSE(error)
/* For one call only: what it asks of its first argument (the low half: both architectures are
 * little-endian), then the answer. The jump is over LOAD, two instructions a check, and ANSWER. */
#define ON_CALL(number, checks, ...) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 2 + 2 * (checks)), LOAD(args[0]), \
        __VA_ARGS__, ANSWER(SECCOMP_RET_ALLOW)

static struct sock_filter denials[] = {
    LOAD(arch),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0),
    REFUSE(EPERM),
    LOAD(nr),
#if defined(__x86_64__)
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_SYSCALL_BIT, 0, 1),
    REFUSE(EPERM),
#endif
    IF_EQUAL(SYS_userfaultfd, EPERM),
    IF_EQUAL(SYS_keyctl, EPERM),
    IF_EQUAL(SYS_add_key, EPERM),
    IF_EQUAL(SYS_request_key, EPERM),
    IF_EQUAL(SYS_bpf, EPERM),
    IF_EQUAL(SYS_perf_event_open, EPERM),
    IF_EQUAL(SYS_io_uring_setup, EPERM),
    IF_EQUAL(SYS_io_uring_enter, EPERM),
    IF_EQUAL(SYS_io_uring_register, EPERM),
    IF_EQUAL(SYS_setns, EPERM),
    /* Its flags lie in memory, where a filter can't look; C libraries fall back to clone. */
    IF_EQUAL(SYS_clone3, ENOSYS),
    ON_CALL(SYS_clone, 1, IF_ANY_BIT(CLONE_NEWUSER, EPERM)),
    ON_CALL(SYS_unshare, 1, IF_ANY_BIT(CLONE_NEWUSER, EPERM)),
    ON_CALL(SYS_socket, 2, IF_EQUAL(AF_ALG, EAFNOSUPPORT), IF_EQUAL(AF_VSOCK, EAFNOSUPPORT)),
    ANSWER(SECCOMP_RET_ALLOW),
};

/* Variables that would change how the helper's own C library loads or behaves. They are meant
 * for the programs of calls: the helper gets them with SET_ASIDE before their names, and gives
 * them to calls as they were. */
static const char *const foreign[] = {
    "LD_", "GLIBC_TUNABLES=", "MALLOC_", "LC_", "LANG", "LOCPATH=", "GCONV_PATH=", "NLSPATH=",
};
#define SET_ASIDE "RUNNER_SET_ASIDE_"

static char *set_aside(char *variable)
{
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        if (strncmp(variable, foreign[i], strlen(foreign[i])) != 0)
            continue;
        char *renamed = malloc(sizeof SET_ASIDE + strlen(variable));
        return renamed == NULL ? variable : strcat(strcpy(renamed, SET_ASIDE), variable);
    }
    return variable;
}

static int install_denials(void)
{
    const struct sock_fprog program = {sizeof denials / sizeof *denials, denials};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* Asked by a child, since pid 1 gets orphans in any case. */
static int orphans_go_to_subreapers(void)
{
    int failed = 1;
    pid_t child = vfork();
    if (child == 0)
        _exit(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0);
    waitpid(child, &failed, 0);
    return !failed;
}

static int init(size_t count, char **arguments, char **environment)
{
    static char *const start[] = {
        LOADER, "--inhibit-cache", "--library-path", ROOT "/lib", ROOT "/bin/python3",
        /* Isolated, no site, no bytecode written, UTF-8 whatever the locale. */
        "-I", "-S", "-B", "-X", "utf8", ROOT "/app/start.py",
    };
    char *command[sizeof start / sizeof *start + count + 3];
    char **next = mempcpy(command, start, sizeof start);
    if (!install_denials())
        *next++ = "--seccomp=off";
    if (!orphans_go_to_subreapers())
        *next++ = "--subreaper=off";
    memcpy(next, arguments, (count + 1) * sizeof *arguments); /* with the NULL */

    for (char **variable = environment; *variable != NULL; variable++)
        *variable = set_aside(*variable);
    execve(LOADER, command, environment);
    COMPLAIN("supervisor: can't start " LOADER ": a toolbox for another architecture?\n");
    return USAGE_ERROR;
}

/* EXITED and REMAIN in one write; or one failure, and exit status 127. The end of the file means
 * that nothing of the call is left, or that the supervisor was killed. That the program started
 * is not told: each record wakes the helper, and this runs on every call. */
struct record {
    uint32_t type;
    int32_t value;
};
enum {
    CHDIR_FAILED = 1, /* errno; nothing ran. */
    EXEC_FAILED = 2,  /* errno of vfork, of becoming the user, or of exec; nothing ran. */
    EXITED = 3,       /* The program's wait status. */
    REMAIN = 4,       /* 1 where processes of the call live on, else 0. */
};
enum { STATUS_FD = 3 };

static int fail(uint32_t type, int error)
{
    const struct record record = {type, error};
    say(STATUS_FD, &record, sizeof record);
    return NOTHING_RAN;
}

/* Straight to the kernel: the C library keeps three signals for itself and would leave them be. */
static void set_blocked_signals(uint64_t mask)
{
    syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &mask, NULL, sizeof mask);
}

static void reset_signal_actions(void)
{
    static const unsigned long defaults[4];
    for (int number = 1; number <= 64; number++)
        syscall(SYS_rt_sigaction, number, defaults, NULL, sizeof(uint64_t));
}

/* STATUS_FD is what is left beside 0, 1 and 2, and ends with an exec. */
static int keep_only(int status_fd)
{
    if (status_fd == STATUS_FD) {
        if (fcntl(STATUS_FD, F_SETFD, FD_CLOEXEC) < 0)
            return -1;
    } else if (dup3(status_fd, STATUS_FD, O_CLOEXEC) < 0) {
        return -1;
    }
    if (syscall(SYS_close_range, STATUS_FD + 1, ~0U, 0) == 0)
        return 0;
    /* Before Linux 5.9, and in old versions of gVisor. The listing's own descriptor is among
     * those that are listed, and is closed last. */
    DIR *listing = opendir("/proc/self/fd");
    if (listing == NULL)
        return -1;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        int fd = atoi(entry->d_name);
        if (fd > STATUS_FD && fd != dirfd(listing))
            close(fd);
    }
    closedir(listing);
    return 0;
}

/* The kernel is to take a call before the helper where memory runs out. */
static void prefer_for_oom(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    say(fd, "500", 3);
    close(fd);
}

/* `pkill -9 -f server.py` is to find the server, not what supervises it. The kernel takes a
 * command line without a NUL at its end for one that the process has rewritten, and shows its
 * first string only. */
static void hide_command(char **command)
{
    while (command[1] != NULL)
        command++;
    command[0][strlen(command[0])] = ' ';
}

/* Who the program is to be. */
enum { MOST_GROUPS = 64 };
struct user {
    uid_t uid;
    gid_t groups[MOST_GROUPS]; /* The first is its own. */
    size_t count;
    int switches; /* Else it stays who this is. */
    int keeps;    /* The capabilities. */
};

static int parse_user(const char *text, struct user *user)
{
    if (strcmp(text, "-") == 0)
        return 0;
    user->switches = 1;
    user->keeps = *text == '+';
    char *rest;
    user->uid = (uid_t)strtoul(text + user->keeps, &rest, 10);
    while (*rest == ':' && user->count < MOST_GROUPS)
        user->groups[user->count++] = (gid_t)strtoul(rest + 1, &rest, 10);
    return *rest == '\0' && user->count > 0 ? 0 : -1;
}

static int set_capabilities(const struct __user_cap_data_struct *sets)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    return (int)syscall(SYS_capset, &header, sets);
}

/* The helper does its own work as the workspace's owner, with root kept at hand. What starts
 * from it has the capabilities, but not in effect. */
static int become_root(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0 ||
        syscall(SYS_capget, &header, sets) < 0)
        return -1;
    for (int i = 0; i < 2; i++)
        sets[i].effective = sets[i].permitted;
    return set_capabilities(sets);
}

/* `echo > /dev/stdout` opens the pipe anew, which its owner may. */
static void give_pipes(const struct user *user)
{
    struct stat status;
    for (int fd = 0; fd < STATUS_FD; fd++)
        if (fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode) &&
            fchown(fd, user->uid, user->groups[0]) < 0)
            continue; /* It can write all the same. */
}

/* Runs in the child, by the kernel's own calls: the C library's want to tell other threads. */
static int become(const struct user *user)
{
    static const struct __user_cap_data_struct none[2];
    const gid_t gid = user->groups[0];
    if (syscall(SYS_setgroups, user->count, user->groups) < 0 ||
        syscall(SYS_setresgid, gid, gid, gid) < 0 ||
        syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0)
        return -1;
    return user->keeps ? 0 : set_capabilities(none);
}

static int reap(pid_t program)
{
    int status;
    pid_t pid;
    do {
        pid = wait4(-1, &status, __WALL, NULL);
    } while (pid != program); /* It can't fail: the program is a child, and no signal gets here. */

    struct record ended[2] = {{EXITED, status}, {REMAIN, 1}};
    do {
        pid = wait4(-1, &status, __WALL | WNOHANG, NULL);
    } while (pid > 0);
    ended[1].value = pid == 0;
    say(STATUS_FD, ended, sizeof ended);

    while (pid >= 0)
        pid = wait4(-1, &status, __WALL, NULL);
    return 0;
}

static int call(int status_fd, const char *who, const char *directory, char **command)
{
    /* All blocked, so that no signal but SIGKILL and SIGSTOP does anything to this process. */
    set_blocked_signals(~0ULL);
    static struct user user;
    if (parse_user(who, &user) < 0 || keep_only(status_fd) < 0)
        return USAGE_ERROR;
    if (user.switches) {
        if (become_root() < 0)
            return fail(EXEC_FAILED, errno);
        give_pipes(&user);
    }
    reset_signal_actions();
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    prefer_for_oom(); /* Before the next: /proc/self of an undumpable process is root's. */
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);

    /* A user may start in a directory that is not theirs; it is of no use to them. */
    if (chdir(directory) < 0)
        return fail(CHDIR_FAILED, errno);

    /* The child borrows this memory until it has executed the program, or failed to. */
    volatile int error = 0;
    pid_t program = vfork();
    if (program == 0) {
        setsid(); /* `kill -9 0` in a script ends the call, not its supervisor. */
        set_blocked_signals(0);
        if (!user.switches || become(&user) == 0)
            execvp(command[0], command);
        error = errno;
        _exit(NOTHING_RAN);
    }
    if (program < 0)
        error = errno;
    if (error != 0)
        return fail(EXEC_FAILED, error);

    hide_command(command);
    /* The call's output ends when its processes have closed it, whoever supervises them. */
    for (int fd = 0; fd < STATUS_FD; fd++)
        close(fd);
    return reap(program);
}

int main(int count, char **arguments, char **environment)
{
    if (count >= 2 && strcmp(arguments[1], "init") == 0)
        return init((size_t)count - 2, arguments + 2, environment);
    if (count >= 6 && strcmp(arguments[1], "call") == 0)
        return call(atoi(arguments[2]), arguments[3], arguments[4], arguments + 5);
    COMPLAIN("usage: supervisor init [ARG...]\n"
             "       supervisor call STATUS_FD WHO CWD PROGRAM [ARG...]\n");
    return USAGE_ERROR;
}
