//! Runs a model on zeros: what a `-sys` crate of libforge declares, and a call.
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

const MAX_RANK: usize = 8; // FORGE_MAX_RANK

#[repr(C)]
pub struct Dtype { pub code: u8, pub bits: u8, pub lanes: u16 }

#[repr(C)]
pub struct Port { pub name: *const c_char, pub dtype: Dtype, pub rank: i32, pub shape: [i64; MAX_RANK] }

#[repr(C)]
pub struct Array { pub data: *mut c_void, pub size: usize, pub shape: [i64; MAX_RANK] }

#[link(name = "forge")]
extern "C" {
    fn forge_open(path: *const c_char, key: *const c_char, password: *const c_void, size: usize, model: *mut *mut c_void) -> c_int;
    fn forge_close(model: *mut c_void);
    fn forge_input(model: *const c_void, index: i32) -> *const Port;
    fn forge_start(model: *const c_void, threads: i32, session: *mut *mut c_void) -> c_int;
    fn forge_stop(session: *mut c_void);
    fn forge_run(session: *mut c_void, inputs: *const Array, outputs: *mut Array) -> c_int;
    fn forge_message() -> *const c_char;
}

fn checked(code: c_int) -> Result<(), String> {
    if code == 0 { return Ok(()); }
    Err(unsafe { CStr::from_ptr(forge_message()) }.to_string_lossy().into_owned())
}

fn main() -> Result<(), String> {
    let path = CString::new(std::env::args().nth(1).ok_or("expected a library")?).map_err(|error| error.to_string())?;
    let (mut model, mut session) = (null_mut(), null_mut());
    unsafe {
        checked(forge_open(path.as_ptr(), null(), null(), 0, &mut model))?;
        checked(forge_start(model, 1, &mut session))?;
        let port = &*forge_input(model, 0);
        let mut shape = port.shape;
        for extent in &mut shape[..port.rank as usize] { *extent = (*extent).max(1); } // an open extent: any size
        let size = shape[..port.rank as usize].iter().product::<i64>() as usize * port.dtype.bits as usize / 8;
        let mut zeros = vec![0u8; size];
        let input = Array { data: zeros.as_mut_ptr().cast(), size, shape };
        let mut output = Array { data: null_mut(), size: 0, shape: [0; MAX_RANK] }; // it stays in the session's memory
        checked(forge_run(session, &input, &mut output))?;
        for value in std::slice::from_raw_parts(output.data.cast::<f32>(), output.size / 4) { println!("{value:?}"); }
        forge_stop(session);
        forge_close(model);
    }
    Ok(())
}
