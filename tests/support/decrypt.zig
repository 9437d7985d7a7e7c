//! Decrypts by the forms of the runtime's AES-256-GCM what `tests/native/test_ciphers.py` writes to its standard input: for
//! each case a head, the associated bytes, then the encrypted ones and their tag. Answers a byte, 1 where they were as they
//! should be, and as many bytes as there are without the tag.
const std = @import("std");
const forms = @import("forms").forms;
const linux = std.os.linux;

pub const panic = std.debug.no_panic;

/// `form`: its index; `before`: how far the destination lies before what is decrypted.
const Head = extern struct { form: u32, size: u32, associated: u32, before: u32, nonce: [12]u8, key: [32]u8 };
const Decrypt = fn ([*]u8, [*]const u8, usize, [*]const u8, usize, *const [12]u8, *const [32]u8) callconv(.c) bool;
const compiled = compiled: {
    var functions: [forms.len]*const Decrypt = undefined;
    for (forms, &functions) |name, *function| function.* = @extern(*const Decrypt, .{ .name = "forge_decrypt_" ++ name });
    break :compiled functions;
};

var room: [1 << 21]u8 align(64) = undefined;
var given: [1 << 10]u8 = undefined;

fn fill(bytes: []u8) bool {
    var done: usize = 0;
    while (done < bytes.len) {
        const got = linux.read(0, bytes[done..].ptr, bytes.len - done);
        if (linux.errno(got) != .SUCCESS or got == 0) return false;
        done += got;
    }
    return true;
}

fn put(bytes: []const u8) void {
    var done: usize = 0;
    while (done < bytes.len) done += linux.write(1, bytes[done..].ptr, bytes.len - done);
}

pub fn main() void {
    var head: Head = undefined;
    while (fill(std.mem.asBytes(&head))) {
        const data = room[head.before..][0 .. head.size + 16];
        if (!fill(given[0..head.associated]) or !fill(data)) return;
        const is_right = compiled[head.form](&room, data.ptr, head.size, &given, head.associated, &head.nonce, &head.key);
        put(&.{@intFromBool(is_right)});
        put(room[0..head.size]);
    }
}
