//! How much memory this process has used at most.

/// The largest resident size so far in bytes, where the system says it.
#[cfg(unix)]
pub fn peak() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole `rusage`, for which zeros are a valid value; the call only writes to it.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    let size = u64::try_from(usage.ru_maxrss).ok()?;
    // Apple counts bytes, everybody else KiB.
    Some(if cfg!(target_vendor = "apple") { size } else { size * 1024 })
}

/// The largest resident size so far in bytes, where the system says it.
#[cfg(not(unix))]
pub fn peak() -> Option<u64> {
    None
}
