//! The accounts that may open this process's pipes: the user that it belongs to, and the system.

use std::io;
use std::mem::size_of;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::null_mut;
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::{HANDLE, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{
    GetTokenInformation, PSECURITY_DESCRIPTOR, SECURITY_ATTRIBUTES, TOKEN_QUERY, TOKEN_USER, TokenUser,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Bytes for the user of a token: its header and the longest identifier (68 bytes).
const USER_BYTES: usize = size_of::<TOKEN_USER>() + 68;

/// Attributes for objects that only this user may open. Child processes don't inherit them.
pub fn for_this_user() -> io::Result<SECURITY_ATTRIBUTES> {
    /// The address of the descriptor, which is never freed.
    static DESCRIPTOR: OnceLock<usize> = OnceLock::new();
    let descriptor = match DESCRIPTOR.get() {
        Some(descriptor) => *descriptor,
        None => {
            let made = descriptor(&user()?)? as usize;
            *DESCRIPTOR.get_or_init(|| made)
        }
    };
    Ok(SECURITY_ATTRIBUTES {
        nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
        lpSecurityDescriptor: descriptor as PSECURITY_DESCRIPTOR,
        bInheritHandle: 0,
    })
}

/// A descriptor with full access for a user and the system, and none for others.
fn descriptor(user: &str) -> io::Result<PSECURITY_DESCRIPTOR> {
    let text: Vec<u16> = format!("D:P(A;;GA;;;{user})(A;;GA;;;SY)").encode_utf16().chain([0]).collect();
    let mut made: PSECURITY_DESCRIPTOR = null_mut();
    // SAFETY: the text ends with a zero, and the result is written to a local variable.
    let is_made = unsafe {
        ConvertStringSecurityDescriptorToSecurityDescriptorW(
            text.as_ptr(),
            SDDL_REVISION_1,
            &mut made,
            null_mut(),
        )
    };
    if is_made == 0 { Err(io::Error::last_os_error()) } else { Ok(made) }
}

/// The identifier of this process's user, such as `S-1-5-21-…`.
fn user() -> io::Result<String> {
    let mut token: HANDLE = null_mut();
    // SAFETY: the handle of this process needs not be closed, and the result is written to a local variable.
    if unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nothing else closes it.
    let token = unsafe { OwnedHandle::from_raw_handle(token) };
    // Aligned for the pointer at its start.
    let mut user = [0_u64; USER_BYTES.div_ceil(8)];
    let mut text = null_mut();
    let mut length = 0;
    // SAFETY: the buffer has the length that is passed, and after success starts with a `TOKEN_USER`, whose pointer leads
    // into the buffer.
    let is_read = unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            user.as_mut_ptr().cast(),
            size_of_val(&user) as u32,
            &mut length,
        ) != 0
            && ConvertSidToStringSidW((*user.as_ptr().cast::<TOKEN_USER>()).User.Sid, &mut text) != 0
    };
    if !is_read {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the text ends with a zero, and is freed once, after it was copied.
    unsafe {
        let length = (0..).take_while(|at| *text.add(*at) != 0).count();
        let copied = String::from_utf16_lossy(std::slice::from_raw_parts(text, length));
        LocalFree(text.cast());
        Ok(copied)
    }
}
