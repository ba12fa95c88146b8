//! Finds the CPU, which is always there, and describes it.

use crate::CpuBackend;
use crate::pool::default_threads;
use crate::tier::Tier;
use cupola_backend::{Backend, BackendError, Device, Options, Provider};
use std::sync::Arc;

/// Opens the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuProvider;

impl Provider for CpuProvider {
    fn kind(&self) -> &'static str {
        "cpu"
    }

    fn devices(&self) -> Result<Vec<Device>, String> {
        Ok(vec![device(Tier::detect(), default_threads())])
    }

    fn open(&self, index: usize, options: &Options) -> Result<Arc<dyn Backend>, BackendError> {
        if index != 0 {
            let message = "there is only one CPU, cpu:0; it uses all sockets".into();
            return Err(BackendError::Device { device: format!("cpu:{index}"), message });
        }
        Ok(Arc::new(CpuBackend::open(options)?))
    }
}

/// The machine's CPU, as used with this instruction set and this many threads.
pub(crate) fn device(tier: Tier, threads: usize) -> Device {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let tiers: Vec<&str> = Tier::available().iter().map(|t| t.name()).collect();
    let details = [
        ("instructions", format!("{tier} (available: {})", tiers.join(", "))),
        ("threads", format!("{threads} of {cores} processors")),
    ];
    Device {
        kind: "cpu".into(),
        index: 0,
        name: name().unwrap_or_else(|| std::env::consts::ARCH.into()),
        memory: memory(),
        details: details.map(|(k, v)| (k.into(), v)).into(),
    }
}

/// The brand string of an x86 processor.
#[cfg(target_arch = "x86_64")]
fn name() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    if __cpuid(0x8000_0000).eax < 0x8000_0004 {
        return None;
    }
    let leaves = [0x8000_0002, 0x8000_0003, 0x8000_0004].map(__cpuid);
    let bytes: Vec<u8> = leaves.iter().flat_map(|l| [l.eax, l.ebx, l.ecx, l.edx]).flat_map(u32::to_le_bytes).collect();
    let text = String::from_utf8_lossy(&bytes);
    let words: Vec<&str> = text.trim_end_matches('\0').split_whitespace().collect();
    Some(words.join(" ")).filter(|name| !name.is_empty())
}

/// The model that the kernel names.
#[cfg(all(not(target_arch = "x86_64"), target_os = "linux"))]
fn name() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

#[cfg(all(not(target_arch = "x86_64"), target_os = "macos"))]
fn name() -> Option<String> {
    let mut text = [0u8; 128];
    let len = sysctl(c"machdep.cpu.brand_string", &mut text)?;
    Some(std::ffi::CStr::from_bytes_until_nul(&text[..len]).ok()?.to_str().ok()?.to_string())
}

#[cfg(all(not(target_arch = "x86_64"), not(any(target_os = "linux", target_os = "macos"))))]
fn name() -> Option<String> {
    None
}

/// Bytes of main memory.
#[cfg(target_os = "linux")]
fn memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(target_os = "macos")]
fn memory() -> Option<u64> {
    let mut bytes = [0u8; 8];
    (sysctl(c"hw.memsize", &mut bytes)? == 8).then(|| u64::from_ne_bytes(bytes))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn memory() -> Option<u64> {
    None
}

/// Reads a kernel variable; gives the bytes written.
#[cfg(target_os = "macos")]
fn sysctl(name: &std::ffi::CStr, out: &mut [u8]) -> Option<usize> {
    let mut len = out.len();
    // SAFETY: `out` has `len` bytes, which the kernel does not exceed; nothing is set.
    let result =
        unsafe { libc::sysctlbyname(name.as_ptr(), out.as_mut_ptr().cast(), &mut len, std::ptr::null_mut(), 0) };
    (result == 0).then_some(len.min(out.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_described() {
        let devices = CpuProvider.devices().unwrap();
        assert_eq!((devices.len(), devices[0].kind.as_str()), (1, "cpu"));
        assert!(!devices[0].name.is_empty());
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        assert!(devices[0].memory.unwrap() > 64 << 20);
    }

    #[test]
    fn what_does_not_exist_is_an_error() {
        let error = |index: usize, options: Options| CpuProvider.open(index, &options).err().unwrap().to_string();
        assert!(error(1, Options::default()).contains("only one CPU"));
        let unknown = error(0, Options { cpu_tier: Some("mmx".into()), ..Options::default() });
        assert!(unknown.contains("mmx") && unknown.contains("scalar"), "{unknown}");
        for threads in [1025, 100_000, usize::MAX] {
            let many = error(0, Options { threads: Some(threads), ..Options::default() });
            assert!(many.contains(&threads.to_string()) && many.contains("at most 1024"), "{many}");
        }
    }

    #[test]
    fn options_are_followed() {
        let options = Options { threads: Some(3), cpu_tier: Some("scalar".into()), ..Options::default() };
        let details = CpuProvider.open(0, &options).unwrap().device().details.clone();
        assert!(details[0].1.starts_with("scalar"), "{details:?}");
        assert!(details[1].1.starts_with("3 of"), "{details:?}");
    }
}
