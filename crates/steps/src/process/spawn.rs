//! Starts a process inside a cgroup: `clone3` with `CLONE_INTO_CGROUP`, then `execve`.
//!
//! Moving the child later would be slow, because most kernels wait for an RCU grace period. Neither our dependencies
//! nor the C library wrap this call.
#![expect(
    unsafe_code,
    reason = "clone3 has no safe wrapper, and the child of a clone may only make async-signal-safe calls"
)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, setrlimit};

/// `CLONE_CLEAR_SIGHAND` of `linux/sched.h`: the child has no signal handlers.
const CLEAR_SIGNAL_HANDLERS: u64 = 0x1_0000_0000;
/// `CLONE_INTO_CGROUP` of `linux/sched.h`: the child starts in the cgroup of the directory.
const INTO_CGROUP: u64 = 0x2_0000_0000;
const NOT_EXECUTED: c_int = 127;

#[derive(Debug)]
pub(super) struct Program<'a> {
    /// Path of the file, without a lookup in `PATH`.
    pub(super) file: &'a Path,
    /// `argv`: the name of the program, then its arguments.
    pub(super) args: Vec<&'a OsStr>,
    pub(super) env: Vec<(&'a OsStr, &'a OsStr)>,
    pub(super) work_dir: Option<&'a Path>,
    pub(super) stdio: [BorrowedFd<'a>; 3],
}

#[derive(Debug)]
pub(super) enum SpawnError {
    /// The system does not permit starting a process in the cgroup or in the namespaces.
    Clone(io::Error),
    /// A path, argument or variable contains a NUL byte.
    Name(io::Error),
}

impl From<SpawnError> for io::Error {
    fn from(error: SpawnError) -> Self {
        match error {
            SpawnError::Name(error) => error,
            SpawnError::Clone(error) => {
                Self::new(error.kind(), format!("failed to start a process in its cgroup and namespaces: {error}"))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Namespaces {
    #[default]
    Shared,
    /// No interfaces except loopback.
    Network,
    /// As `Network`, inside a user namespace with only the agent's user. For an agent without privileges.
    UserAndNetwork,
}

#[derive(Debug, Default)]
pub(super) struct Restrictions {
    /// Opened `cgroup.procs` of the cgroups to join.
    pub(super) join: Vec<File>,
    pub(super) namespaces: Namespaces,
    /// Maximum size in bytes of written files. `None` means no limit.
    pub(super) file_bytes: Option<u64>,
    /// Limit of open files. `None` means the agent's limit.
    pub(super) open_files: Option<Rlimit>,
}

impl Restrictions {
    /// Returns whether [`std::process::Command`] can enforce the restrictions, with [`limit_open_files`].
    pub(super) fn is_simple(&self) -> bool {
        self.join.is_empty() && self.namespaces == Namespaces::Shared && self.file_bytes.is_none()
    }
}

/// Makes the child of `command` set its limit of open files before it executes the program.
pub(super) fn limit_open_files(command: &mut std::process::Command, limit: Rlimit) {
    let set = move || {
        // Cannot fail, because the limit is below the agent's.
        let _ = setrlimit(Resource::Nofile, limit);
        Ok(())
    };
    // SAFETY: the closure only makes one system call.
    unsafe { command.pre_exec(set) };
}

/// Starts a process that leads a new process group, in the cgroup directory `cgroup`. `None` means the agent's cgroup.
///
/// Returns the process ID and a pipe, which closes when the program is executed. If that fails, the child first writes
/// the system's error number, in native byte order.
pub(super) fn spawn_in(
    cgroup: Option<&File>,
    program: &Program<'_>,
    restrictions: &Restrictions,
) -> Result<(i32, OwnedFd), SpawnError> {
    let file = c_string(program.file.as_os_str())?;
    let args = program.args.iter().map(|arg| c_string(arg)).collect::<Result<Vec<_>, _>>()?;
    let env = program.env.iter().map(|(key, value)| env_entry(key, value)).collect::<Result<Vec<_>, _>>()?;
    let dir = program.work_dir.map(|dir| c_string(dir.as_os_str())).transpose()?;
    let (args, env) = (pointers(&args), pointers(&env));
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| SpawnError::Clone(error.into()))?;
    let join: Vec<c_int> = restrictions.join.iter().map(AsRawFd::as_raw_fd).collect();
    let [uid, gid] = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
    let maps = [
        c"deny".to_owned(),
        c_string(OsStr::new(&format!("{uid} {uid} 1")))?,
        c_string(OsStr::new(&format!("{gid} {gid} 1")))?,
    ];
    let child = ChildSetup {
        file: file.as_ptr(),
        args: args.as_ptr(),
        env: env.as_ptr(),
        dir: dir.as_deref().map_or(ptr::null(), CStr::as_ptr),
        stdio: program.stdio.map(|fd| fd.as_raw_fd()),
        error_pipe: write.as_raw_fd(),
        join: join.as_ptr(),
        join_count: join.len(),
        namespaces: restrictions.namespaces,
        file_bytes: restrictions.file_bytes,
        open_files: restrictions.open_files,
        maps: maps.each_ref().map(|map| (map.as_ptr(), map.as_bytes().len())),
    };
    // SAFETY: everything that `child` points to lives until the end of this function. The child shares no memory and
    // has its own copy.
    let pid = unsafe { clone_into(cgroup, &child) }.map_err(SpawnError::Clone)?;
    drop(write);
    Ok((pid, read))
}

pub(super) fn can_start_in(cgroup: &File) -> bool {
    probe(Some(cgroup), &Restrictions::default()).is_ok()
}

/// Returns the system's error if processes cannot be started with these restrictions.
pub(super) fn can_restrict(restrictions: &Restrictions) -> io::Result<()> {
    probe(None, restrictions)
}

/// Tests whether a process can be started: starts one, up to the execution of a program.
fn probe(cgroup: Option<&File>, restrictions: &Restrictions) -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let null = std::os::fd::AsFd::as_fd(&null);
    // Executing an empty path fails with `ENOENT`. Any other error has an earlier cause.
    let program =
        Program { file: Path::new(""), args: Vec::new(), env: Vec::new(), work_dir: None, stdio: [null, null, null] };
    let (pid, report) = spawn_in(cgroup, &program, restrictions)?;
    let error = exec_error(report);
    reap(pid);
    match error {
        Some(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Some(error) => Err(error),
        None => Err(io::Error::other("the process was killed")),
    }
}

/// `struct clone_args` of `linux/sched.h`, up to the member that names a cgroup (Linux 5.7).
#[derive(Default)]
#[repr(C, align(8))]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Pointers and numbers for the child, which must not allocate memory.
struct ChildSetup {
    file: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    dir: *const c_char,
    stdio: [c_int; 3],
    error_pipe: c_int,
    join: *const c_int,
    join_count: usize,
    namespaces: Namespaces,
    file_bytes: Option<u64>,
    open_files: Option<Rlimit>,
    /// Content and lengths of `setgroups`, `uid_map` and `gid_map` of a user namespace.
    maps: [(*const c_char, usize); 3],
}

/// Starts a child in the cgroup and the namespaces, and executes the program in it. Returns the child's process ID.
///
/// # Safety
/// The pointers of `child` must be valid, and its lists must end with a null pointer.
unsafe fn clone_into(cgroup: Option<&File>, child: &ChildSetup) -> io::Result<i32> {
    let number = |number: c_int| u64::try_from(number).map_err(io::Error::other);
    let namespaces = match child.namespaces {
        Namespaces::Shared => 0,
        Namespaces::Network => libc::CLONE_NEWNET,
        Namespaces::UserAndNetwork => libc::CLONE_NEWNET | libc::CLONE_NEWUSER,
    };
    let into_cgroup = if cgroup.is_some() { INTO_CGROUP } else { 0 };
    let args = CloneArgs {
        flags: CLEAR_SIGNAL_HANDLERS | into_cgroup | number(namespaces)?,
        exit_signal: number(libc::SIGCHLD)?,
        cgroup: cgroup.map_or(Ok(0), |cgroup| number(cgroup.as_raw_fd()))?,
        ..CloneArgs::default()
    };
    // SAFETY: without a stack and shared memory, this is a fork. The kernel only reads the structure, which has the
    // layout that the kernel expects, and the given size.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match pid {
        0 => {
            // SAFETY: this is the child. The caller guarantees that the data is valid.
            unsafe { execute(child) }
        }
        -1 => Err(io::Error::last_os_error()),
        pid => i32::try_from(pid).map_err(io::Error::other),
    }
}

/// Executes the program in the child.
///
/// Only makes async-signal-safe calls and allocates no memory, because other threads of the parent may have held locks.
///
/// # Safety
/// As for [`clone_into`].
unsafe fn execute(child: &ChildSetup) -> ! {
    // SAFETY: the caller guarantees that the pointers are valid. The set of signals is initialized before its use.
    unsafe {
        let mut signals = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut signals);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const signals, ptr::null_mut());
        // Rust programs ignore SIGPIPE, which the child would inherit.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let [stdin, stdout, stderr] = child.stdio;
        let is_ready = libc::setpgid(0, 0) == 0
            && restrict(child)
            && libc::dup2(stdin, 0) == 0
            && libc::dup2(stdout, 1) == 1
            && libc::dup2(stderr, 2) == 2
            && (child.dir.is_null() || libc::chdir(child.dir) == 0);
        if is_ready {
            libc::execve(child.file, child.args, child.env);
        }
        let error = (*libc::__errno_location()).to_ne_bytes();
        libc::write(child.error_pipe, error.as_ptr().cast(), error.len());
        libc::_exit(NOT_EXECUTED)
    }
}

/// Applies the restrictions in the child. Returns whether that succeeded. If not, `errno` has the error.
///
/// # Safety
/// As for [`execute`].
unsafe fn restrict(child: &ChildSetup) -> bool {
    // SAFETY: the caller guarantees that the pointers are valid, and all calls are async-signal-safe. The `ioctl`
    // request has the name of an interface, which ends with a zero byte.
    unsafe {
        for index in 0..child.join_count {
            // 0 stands for the writing process.
            if libc::write(*child.join.add(index), c"0".as_ptr().cast(), 1) != 1 {
                return false;
            }
        }
        if let Some(bytes) = child.file_bytes {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) != 0 {
                return false;
            }
        }
        if let Some(limit) = child.open_files {
            // Cannot fail, because the limit is below the agent's. Only makes a system call.
            let _ = setrlimit(Resource::Nofile, limit);
        }
        if child.namespaces == Namespaces::Shared {
            return true;
        }
        if child.namespaces == Namespaces::UserAndNetwork {
            let files = [c"/proc/self/setgroups", c"/proc/self/uid_map", c"/proc/self/gid_map"];
            for (file, (text, length)) in files.into_iter().zip(child.maps) {
                let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd < 0 || libc::write(fd, text.cast(), length) < 0 {
                    return false;
                }
                libc::close(fd);
            }
        }
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return false;
        }
        let mut request = std::mem::zeroed::<libc::ifreq>();
        ptr::copy_nonoverlapping(c"lo".as_ptr(), (&raw mut request.ifr_name).cast(), 2);
        #[expect(clippy::cast_possible_truncation, reason = "the flags of an interface are small numbers")]
        let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        request.ifr_ifru.ifru_flags = flags;
        let is_up = libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw mut request) == 0;
        libc::close(socket);
        is_up
    }
}

fn exec_error(pipe: OwnedFd) -> Option<io::Error> {
    let mut number = [0; size_of::<c_int>()];
    // If the child was killed earlier, its exit status shows that.
    File::from(pipe).read_exact(&mut number).ok().map(|()| io::Error::from_raw_os_error(c_int::from_ne_bytes(number)))
}

fn reap(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
}

fn c_string(text: &OsStr) -> Result<CString, SpawnError> {
    CString::new(text.as_bytes()).map_err(|error| SpawnError::Name(error.into()))
}

fn env_entry(key: &OsStr, value: &OsStr) -> Result<CString, SpawnError> {
    CString::new([key.as_bytes(), b"=", value.as_bytes()].concat()).map_err(|error| SpawnError::Name(error.into()))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}
