# Runs on the board for as long as a build uses it: $1 is the working folder, $2 the seconds of silence that are allowed.
# Takes the board's lock, makes a folder for the job, says where and what the board is and has, and waits. When the build ends, is killed, or is not
# heard of any more, it kills what runs for it and removes the folder. POSIX shell; flock is util-linux's or busybox's.
umask 077
mkdir -p "$1" || exit 70
exec 9>"$1/lock" || exit 70
flock -n 9 || { echo waiting; flock 9 || exit 70; }
rm -rf "$1"/job.*
work=$(mktemp -d "$1/job.XXXXXX") || exit 70
finish() {
    for pause in 0 0 1 1 1; do # the shell of the job goes on when its program ends, and what it writes keeps the folder
        [ ! -f "$work/pid" ] || kill -9 "$(cat "$work/pid")" 2>/dev/null
        sleep $pause
        rm -rf "$work" 2>/dev/null && return
    done
}
(
    trap 'kill $nap; exit' TERM
    while :; do
        sleep "$2" &
        nap=$!
        wait $nap
        [ -f "$work/heard" ] || { finish; kill -9 $$; exit; }
        rm -f "$work/heard"
    done
) </dev/null >/dev/null 2>&1 9>&- &
guard=$!
echo "arch=$(uname -m)"
echo "kernel=$(uname -r)"
echo "cpu=$(sed -n 's/^model name[^:]*: *//p;s/^Model[^:]*: *//p;s/^uarch[^:]*: *//p' /proc/cpuinfo | head -n 1)"
for program in "$1"/forge-run-*; do
    [ ! -f "$program" ] || echo "program=$(sha256sum <"$program" | cut -d ' ' -f 1)"
done
echo "ready=$work"
while read -r _; do : >"$work/heard"; done
kill $guard
finish
