//! Arguments that are pointers. What a caller may give is checked as far as that is possible.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::slice;

use crate::error::{Result, invalid};

/// The object of a handle.
///
/// # Safety
/// The pointer is NULL or valid.
pub unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    match pointer.as_ref() {
        Some(object) => Ok(object),
        None => invalid(format!("{name} is NULL")),
    }
}

/// The place of a result.
///
/// # Safety
/// The pointer is NULL or valid for a write.
pub unsafe fn place<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut MaybeUninit<T>> {
    match pointer.cast::<MaybeUninit<T>>().as_mut() {
        Some(place) => Ok(place),
        None => invalid(format!("{name} is NULL: it takes the result")),
    }
}

/// A list of `len` elements; NULL is allowed for an empty one.
///
/// # Safety
/// The pointer is NULL or valid for that many elements.
pub unsafe fn list<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => invalid(format!("{name} is NULL, but {len} elements are given")),
        (false, _) if len > isize::MAX as usize / size_of::<T>().max(1) => {
            invalid(format!("{name} has {len} elements"))
        }
        (false, _) => Ok(slice::from_raw_parts(pointer, len)),
    }
}

/// A list of results, of `len` elements.
///
/// # Safety
/// As [`list`], for writes.
pub unsafe fn room<'a, T>(pointer: *mut T, len: usize, name: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    let pointer = pointer.cast::<MaybeUninit<T>>();
    list(pointer.cast_const(), len, name)?;
    Ok(if len == 0 { &mut [] } else { slice::from_raw_parts_mut(pointer, len) })
}

/// Writes elements to as many places.
pub fn fill<T: Copy>(places: &mut [MaybeUninit<T>], from: &[T]) {
    for (to, from) in places.iter_mut().zip(from) {
        to.write(*from);
    }
}

/// A text that ends in a zero.
///
/// # Safety
/// The pointer is NULL or a text that ends in a zero.
pub unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return invalid(format!("{name} is NULL"));
    }
    CStr::from_ptr(pointer).to_str().or_else(|_| invalid(format!("{name} is not UTF-8")))
}

/// A text of `len` bytes, which may hold zeros.
///
/// # Safety
/// As [`list`].
pub unsafe fn counted_text<'a>(pointer: *const c_char, len: usize, name: &str) -> Result<&'a str> {
    let bytes = list(pointer.cast::<u8>(), len, name)?;
    std::str::from_utf8(bytes).or_else(|_| invalid(format!("{name} is not UTF-8")))
}

/// Options: the caller's structure, which may be shorter or longer than this version's; NULL is the default.
///
/// # Safety
/// The pointer is NULL, or its structure begins with its size in bytes.
pub unsafe fn options<T: Copy>(pointer: *const T, default: T, name: &str) -> Result<T> {
    if pointer.is_null() {
        return Ok(default);
    }
    let size = *pointer.cast::<usize>();
    if size < size_of::<usize>() {
        return invalid(format!("{name}: struct_size is {size}; begin with hologram's initial value or its size"));
    }
    let mut own = default;
    let bytes = size.min(size_of::<T>());
    std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut own).cast::<u8>(), bytes);
    Ok(own)
}

/// Gives an object to the caller.
pub fn give<T>(place: &mut MaybeUninit<*mut T>, object: T) {
    place.write(Box::into_raw(Box::new(object)));
}

/// Frees an object that [`give`] made.
///
/// # Safety
/// The pointer is NULL or such an object, which nobody uses.
pub unsafe fn release<T>(pointer: *mut T) {
    if !pointer.is_null() {
        let object = Box::from_raw(pointer);
        // A destructor's panic ends here.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(object)));
    }
}

/// Gives a text to the caller, who frees it by `hologram_string_release`.
pub fn give_text(place: &mut MaybeUninit<*mut c_char>, text: String) -> Result {
    match CString::new(text) {
        Ok(text) => {
            place.write(text.into_raw());
        }
        Err(_) => return invalid("the text holds a zero, which a C string cannot"),
    }
    Ok(())
}

/// Frees a text that the library gave. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_string_release(text: *mut c_char) {
    if !text.is_null() {
        drop(CString::from_raw(text));
    }
}
