// What the boxed process takes on itself before it runs a command: limits, no privileges, a Landlock
// domain and a seccomp filter. Every function returns false where the kernel refuses it.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace box {

// Landlock's structures and numbers, as in the kernel's public header, which older systems lack.
struct LandlockRuleset {
    uint64_t files, network, scoped;
};
struct LandlockPath {
    uint64_t allowed;
    int32_t parent;
} __attribute__((packed));

constexpr long LANDLOCK_CREATE = 444, LANDLOCK_ADD = 445, LANDLOCK_RESTRICT = 446;
constexpr uint64_t EXECUTE = 1 << 0, WRITE_FILE = 1 << 1, READ_FILE = 1 << 2, READ_DIR = 1 << 3, TRUNCATE = 1 << 14;
// Everything but: 9 char device, 6 and 7 sockets... a scratch folder needs files, folders and links only.
constexpr uint64_t CHANGE = WRITE_FILE | TRUNCATE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13;

inline int landlock_version() { return int(syscall(LANDLOCK_CREATE, nullptr, 0, 1)); }

struct Access {
    const char* path;
    bool write;
};

inline bool landlock(const std::vector<Access>& allowed) {
    int version = landlock_version();
    if (version < 1) return false;
    LandlockRuleset rules = {};
    uint64_t known = version >= 5 ? 0xffff : version >= 3 ? 0x7fff : version >= 2 ? 0x3fff : 0x1fff;
    rules.files = known;
    rules.network = version >= 4 ? 3 : 0;  // no TCP bind or connect
    rules.scoped = version >= 6 ? 3 : 0;   // no abstract sockets or signals to the outside
    size_t size = version >= 6 ? sizeof rules : version >= 4 ? 16 : 8;
    int domain = int(syscall(LANDLOCK_CREATE, &rules, size, 0));
    if (domain < 0) return false;
    for (const Access& item : allowed) {
        int fd = open(item.path, O_PATH | O_CLOEXEC);
        if (fd < 0) continue;  // a path that does not exist needs no permission
        struct stat status;
        bool folder = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
        uint64_t access = EXECUTE | READ_FILE | READ_DIR | (item.write ? CHANGE : 0);
        if (!folder) access &= EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE;
        LandlockPath rule = {access & known, fd};
        bool added = syscall(LANDLOCK_ADD, domain, 1, &rule, 0) == 0;
        close(fd);
        if (!added) return false;
    }
    bool entered = syscall(LANDLOCK_RESTRICT, domain, 0) == 0;
    close(domain);
    return entered;
}

// Calls no compiler or launcher needs and that widen what the kernel exposes: they fail with EPERM.
inline const std::vector<int>& forbidden_calls() {
    static const std::vector<int> all = {
        SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_mount, SYS_umount2, SYS_pivot_root,
        SYS_chroot, SYS_unshare, SYS_setns, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_bpf, SYS_perf_event_open,
        SYS_userfaultfd, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot, SYS_swapon,
        SYS_swapoff, SYS_acct, SYS_quotactl, SYS_settimeofday, SYS_clock_settime, SYS_sethostname, SYS_setdomainname,
        SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_fanotify_init, SYS_personality, SYS_syslog, SYS_vhangup,
        SYS_shmget, SYS_semget, SYS_msgget, SYS_mq_open, SYS_io_setup,
        425, 426, 427,       // io_uring
        428, 429, 430, 431, 432, 442,  // the newer mount calls
        434, 438,            // pidfd_open, pidfd_getfd
#ifdef SYS_ioperm
        SYS_ioperm, SYS_iopl,
#endif
    };
    return all;
}

#if defined(__x86_64__)
constexpr uint32_t MACHINE = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t MACHINE = AUDIT_ARCH_AARCH64;
#endif

inline bool seccomp() {
    std::vector<sock_filter> code;
    auto say = [&](uint16_t op, uint32_t k, uint8_t yes = 0, uint8_t no = 0) { code.push_back({op, yes, no, k}); };
    const uint32_t refuse = SECCOMP_RET_ERRNO | EPERM, absent = SECCOMP_RET_ERRNO | ENOSYS;
    say(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
    say(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0);
    say(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    say(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
    say(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // x32 numbers
    say(BPF_RET | BPF_K, absent);
    for (int number : forbidden_calls()) {
        say(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 1);
        say(BPF_RET | BPF_K, refuse);
    }
    say(BPF_JMP | BPF_JEQ | BPF_K, 435, 0, 1);  // clone3: its flags are out of sight; libc falls back to clone
    say(BPF_RET | BPF_K, absent);
    say(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
    say(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0]));
    say(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC, 0, 1);
    say(BPF_RET | BPF_K, refuse);
    say(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    for (int number : {SYS_socket, SYS_socketpair}) {
        say(BPF_JMP | BPF_JEQ | BPF_K, uint32_t(number), 0, 4);
        say(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0]));
        say(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0);
        say(BPF_RET | BPF_K, refuse);
        say(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    say(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    sock_fprog program = {uint16_t(code.size()), code.data()};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

inline bool limit(int what, uint64_t value) {
    rlimit now;
    if (getrlimit(__rlimit_resource(what), &now) != 0) return false;
    rlimit wanted = {rlim_t(value), rlim_t(value)};
    if (now.rlim_max != RLIM_INFINITY && wanted.rlim_max > now.rlim_max) wanted = {now.rlim_max, now.rlim_max};
    return setrlimit(__rlimit_resource(what), &wanted) == 0;
}

// Becomes `user` with no capability but, where asked, reading past file permissions (the folders it
// may read are then bounded by Landlock).
inline bool drop_privileges(long user, bool read_all) {
    if (user > 0) {
        if (read_all && prctl(PR_SET_KEEPCAPS, 1) != 0) return false;
        if (setgroups(0, nullptr) != 0 || setresgid(gid_t(user), gid_t(user), gid_t(user)) != 0) return false;
        if (setresuid(uid_t(user), uid_t(user), uid_t(user)) != 0) return false;
    }
    for (int c = 0; c <= CAP_LAST_CAP; c++)
        if (prctl(PR_CAPBSET_DROP, c) != 0 && errno != EINVAL && errno != EPERM) return false;
    __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    if (read_all && user > 0) data[0] = {1u << CAP_DAC_READ_SEARCH, 1u << CAP_DAC_READ_SEARCH, 1u << CAP_DAC_READ_SEARCH};
    if (syscall(SYS_capset, &head, data) != 0) return false;
    if (read_all && user > 0 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0) != 0) return false;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

}  // namespace box
