// Runs one command in a box and reports how it ended: the supervisor of kb_env/sandbox.py.
//
// Three processes: the supervisor (outside, keeps the clock), the init (first process of the new
// process namespace: when it ends the kernel kills all others), and the command.
#include "confine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

#include <string>

using namespace box;

namespace {

enum Layer { USER_NS = 1, NAMESPACES = 2, NETWORK_NS = 4, LANDLOCK = 8, SECCOMP = 16, USER = 32 };

struct Settings {
    long layers = 0, parent = 0, wall_ms = 10000, status = -1, record = -1, user = 0;
    uint64_t memory = 0, file = 0, processes = 0, open = 0;
    std::string scratch;
    std::vector<std::string> readable;
    char** command = nullptr;
};

Settings settings;

bool has(Layer layer) { return (settings.layers & layer) != 0; }

// The one line the caller reads: a word, a number. Written by the supervisor alone.
[[noreturn]] void report(const char* word, long number) {
    dprintf(int(settings.status), "%s %ld\n", word, number);
    _exit(0);
}

struct Message {  // from init or command to the supervisor
    char stage[24];
    int number;
};

[[noreturn]] void tell(int pipe, const char* stage, int number) {
    Message message = {};
    strncpy(message.stage, stage, sizeof message.stage - 1);
    message.number = number;
    if (write(pipe, &message, sizeof message) < 0) _exit(2);
    _exit(1);
}

void parse(char** argument) {
    for (; *argument && strcmp(*argument, "--") != 0; argument += 2) {
        std::string name = argument[0];
        const char* value = argument[1];
        if (!value) exit(2);
        if (name == "--layers") settings.layers = atol(value);
        else if (name == "--parent") settings.parent = atol(value);
        else if (name == "--wall-ms") settings.wall_ms = atol(value);
        else if (name == "--status") settings.status = atol(value);
        else if (name == "--record") settings.record = atol(value);
        else if (name == "--memory") settings.memory = strtoull(value, nullptr, 10);
        else if (name == "--file") settings.file = strtoull(value, nullptr, 10);
        else if (name == "--processes") settings.processes = strtoull(value, nullptr, 10);
        else if (name == "--open") settings.open = strtoull(value, nullptr, 10);
        else if (name == "--scratch") settings.scratch = value;
        else if (name == "--read") settings.readable.push_back(value);
        else exit(2);
    }
    if (!*argument || !argument[1]) exit(2);
    settings.command = argument + 1;
}

bool write_file(const char* path, const std::string& text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text.data(), text.size()) == ssize_t(text.size());
    close(fd);
    return done;
}

bool make_folders(const std::string& path) {
    for (size_t end = 0; end != std::string::npos;) {
        end = path.find('/', end + 1);
        if (mkdir(path.substr(0, end).c_str(), 0755) != 0 && errno != EEXIST) return false;
    }
    return true;
}

// Binds a path of the old root into the new one, read-only unless told otherwise.
bool bind(const std::string& from, const std::string& to, bool write, bool device = false) {
    std::string source = "/old" + from;
    struct stat status;
    if (lstat(source.c_str(), &status) != 0) return true;  // absent here: absent there
    if (S_ISLNK(status.st_mode)) {
        char target[4096];
        ssize_t n = readlink(source.c_str(), target, sizeof target - 1);
        if (n < 0) return false;
        target[n] = 0;
        make_folders(to.substr(0, to.rfind('/')));
        return symlink(target, to.c_str()) == 0 || errno == EEXIST;
    }
    if (S_ISDIR(status.st_mode)) {
        if (!make_folders(to)) return false;
    } else {
        size_t slash = to.rfind('/');
        if (slash > 0) make_folders(to.substr(0, slash));
        int fd = open(to.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        if (fd < 0) return false;
        close(fd);
    }
    if (mount(source.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) return false;
    if (device) return true;
    struct statfs kept;  // flags of the source may be locked: they must stay
    if (statfs(to.c_str(), &kept) != 0) return false;
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | (write ? 0 : MS_RDONLY);
    flags |= (kept.f_flags & 0x8 ? MS_NOEXEC : 0) | (kept.f_flags & 0x400 ? MS_NOATIME : 0) |
             (kept.f_flags & 0x800 ? MS_NODIRATIME : 0) | (kept.f_flags & 0x1000 ? MS_RELATIME : 0);
    return mount(nullptr, to.c_str(), nullptr, flags, nullptr) == 0;
}

const char* const DEVICES[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};

// A new root of what is readable, the scratch folder, and nothing else of this machine.
bool new_root() {
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
    if (mount("box", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=67108864,nr_inodes=16384,mode=755") != 0) return false;
    if (chdir("/tmp") != 0 || mkdir("old", 0700) != 0 || syscall(SYS_pivot_root, ".", "old") != 0) return false;
    if (chdir("/") != 0 || mkdir("/tmp", 01777) != 0 || chmod("/tmp", 01777) != 0 || mkdir("/dev", 0755) != 0) return false;
    for (const std::string& path : settings.readable)
        if (!bind(path, path, false)) return false;
    for (const char* path : DEVICES)
        if (!bind(path, path, true, true)) return false;
    if (!settings.scratch.empty() && !bind(settings.scratch, "/scratch", true)) return false;
    return umount2("/old", MNT_DETACH) == 0 && rmdir("/old") == 0;
}

[[noreturn]] void run_command(int pipe) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    std::string home = has(NAMESPACES) ? (settings.scratch.empty() ? "/tmp" : "/scratch") : settings.scratch;
    if (!home.empty() && chdir(home.c_str()) != 0) tell(pipe, "chdir", errno);
    if (settings.record >= 0 && settings.record != 3 && dup2(int(settings.record), 3) < 0) tell(pipe, "record", errno);
    if (pipe <= 3 || fcntl(pipe, F_DUPFD_CLOEXEC, 100) < 0) tell(pipe, "pipe", errno);
    int kept = fcntl(pipe, F_DUPFD_CLOEXEC, 200);
    unsigned first = settings.record >= 0 ? 4 : 3;
    for (unsigned fd = first; fd < 200; fd++) close(int(fd));
    syscall(SYS_close_range, unsigned(kept) + 1, ~0u, 0);
    bool limited = limit(RLIMIT_CORE, 0) && limit(RLIMIT_AS, settings.memory) && limit(RLIMIT_FSIZE, settings.file) &&
                   limit(RLIMIT_NOFILE, settings.open) && limit(RLIMIT_CPU, uint64_t(settings.wall_ms) / 500 + 1) &&
                   limit(RLIMIT_MEMLOCK, 65536);
    if (!limited) tell(kept, "limits", errno);
    bool read_all = has(LANDLOCK) && !has(NAMESPACES);
    if (!drop_privileges(has(USER) ? settings.user : 0, read_all)) tell(kept, "privileges", errno);
    if (!limit(RLIMIT_NPROC, settings.processes)) tell(kept, "processes", errno);
    if (has(LANDLOCK)) {
        std::vector<Access> access;
        for (const std::string& path : settings.readable) access.push_back({path.c_str(), false});
        for (const char* path : DEVICES) access.push_back({path, true});
        if (has(NAMESPACES)) access.push_back({"/tmp", true});
        if (!home.empty()) access.push_back({home.c_str(), true});
        if (!landlock(access)) tell(kept, "landlock", errno);
    }
    if (has(SECCOMP) && !seccomp()) tell(kept, "seccomp", errno);
    signal(SIGPIPE, SIG_DFL);
    execve(settings.command[0], settings.command, environ);
    tell(kept, "exec", errno);
}

// First process of the box: sets the stage, starts the command, reaps, ends with it.
[[noreturn]] void run_init(int pipe) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (has(NAMESPACES) && !new_root()) tell(pipe, "root", errno);
    pid_t child = fork();
    if (child < 0) tell(pipe, "fork", errno);
    if (child == 0) run_command(pipe);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);  // hold none of the command's pipes open
    for (int fd = 0; fd < 3 && null >= 0; fd++) dup2(null, fd);
    if (settings.record >= 0) close(int(settings.record));
    int status = 0;
    for (pid_t done; (done = waitpid(-1, &status, 0)) != child;)
        if (done < 0 && errno != EINTR) tell(pipe, "wait", errno);
    tell(pipe, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

// Without a process namespace: kill what the command left, wherever it moved itself.
void kill_rest() {
    for (int round = 0; round < 2000; round++) {
        if (waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) return;
        if (has(USER) && settings.user > 0 && !has(NAMESPACES)) {
            pid_t killer = fork();
            if (killer == 0) {
                if (setresuid(uid_t(settings.user), uid_t(settings.user), uid_t(settings.user)) == 0) kill(-1, SIGKILL);
                _exit(0);
            }
            if (killer > 0) waitpid(killer, nullptr, 0);
        }
        char path[64], list[65536];
        snprintf(path, sizeof path, "/proc/self/task/%d/children", int(getpid()));
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, list, sizeof list - 1);
        if (fd >= 0) close(fd);
        list[n > 0 ? n : 0] = 0;
        for (char* at = list; *at;) {
            long id = strtol(at, &at, 10);
            if (id > 0) kill(pid_t(id), SIGKILL);
            while (*at == ' ') at++;
        }
        pid_t done;
        while ((done = waitpid(-1, nullptr, WNOHANG)) > 0) {
        }
        if (done < 0 && errno == ECHILD) return;
        usleep(1000);
    }
}

bool enter_namespaces() {
    if (!has(NAMESPACES)) return true;
    uid_t user = getuid();
    gid_t group = getgid();
    int flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | (has(NETWORK_NS) ? CLONE_NEWNET : 0);
    if (unshare(flags | (has(USER_NS) ? CLONE_NEWUSER : 0)) != 0) return false;
    if (!has(USER_NS)) return true;
    write_file("/proc/self/setgroups", "deny");
    return write_file("/proc/self/uid_map", "0 " + std::to_string(user) + " 1") &&
           write_file("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
}

long pick_user() {
    // One uid for each box, so that boxes share no process count and cannot signal each other.
    return has(USER) ? 0x40000000L + getpid() : 0;
}

}  // namespace

int main(int, char** argv) {
    parse(argv + 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (settings.parent > 0 && getppid() != settings.parent) return 3;
    fcntl(int(settings.status), F_SETFD, FD_CLOEXEC);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    settings.user = pick_user();
    if (settings.user > 0 && !settings.scratch.empty() &&
        chown(settings.scratch.c_str(), uid_t(settings.user), gid_t(settings.user)) != 0)
        report("setup-chown", errno);
    if (!enter_namespaces()) report("setup-namespaces", errno);
    int pipes[2];
    if (pipe2(pipes, O_CLOEXEC) != 0) report("setup-pipe", errno);
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, nullptr);
    timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    pid_t init = fork();
    if (init < 0) report("setup-fork", errno);
    if (init == 0) {
        sigprocmask(SIG_UNBLOCK, &chld, nullptr);
        close(int(settings.status));
        run_init(pipes[1]);
    }
    close(pipes[1]);
    prctl(PR_SET_DUMPABLE, 0);
    bool late = false;
    for (;;) {
        int status;
        if (waitpid(init, &status, WNOHANG) == init) break;
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        long gone = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
        if (gone >= settings.wall_ms) {
            late = true;
            kill(init, SIGKILL);
            waitpid(init, &status, 0);
            break;
        }
        long left = settings.wall_ms - gone;
        timespec wait = {left / 1000, left % 1000 * 1000000};
        sigtimedwait(&chld, nullptr, &wait);
    }
    if (!has(NAMESPACES)) kill_rest();
    if (late) report("late", 0);
    Message message = {};
    if (read(pipes[0], &message, sizeof message) != ssize_t(sizeof message)) report("lost", 0);
    message.stage[sizeof message.stage - 1] = 0;
    if (strcmp(message.stage, "exit") == 0 || strcmp(message.stage, "signal") == 0) report(message.stage, message.number);
    report(("setup-" + std::string(message.stage)).c_str(), message.number);
}
