/* Process 1 of a machine that runs one program: it answers over the port whose bytes Bochs writes to its output.
 *
 * /job/arguments has the program and its arguments, each ended by a zero; /job/stdin is what it reads, and /job/folders
 * names the folders whose files the host gets back. An answer is MARK, the status that wait() gave, and then for each
 * file its path, a zero, its size in eight bytes, and its content; an empty path is the end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONSOLE = 0xe9 };
static const char MARK[] = "\001forge-job\002";

static void answer(const void *from, uint64_t bytes) { outsb(CONSOLE, from, bytes); }

static char *content(const char *path, uint64_t *bytes) {
  struct stat about;
  int file = open(path, O_RDONLY);
  if (file < 0 || fstat(file, &about) != 0) return NULL;
  char *found = calloc(1, about.st_size + 1);
  for (*bytes = 0; *bytes < (uint64_t)about.st_size;) {
    ssize_t more = read(file, found + *bytes, about.st_size - *bytes);
    if (more <= 0) break;
    *bytes += more;
  }
  close(file);
  return found;
}

static void give(const char *path) {
  uint64_t bytes = 0;
  char *found = content(path, &bytes);
  if (found == NULL) return;
  answer(path, strlen(path) + 1);
  answer(&bytes, sizeof bytes);
  answer(found, bytes);
  free(found);
}

static void standard(int which, const char *path, int how) {
  int file = open(path, how, 0600);
  if (file < 0 || dup2(file, which) < 0) _exit(125);
}

int main(void) {
  uint64_t bytes;
  mount("proc", "/proc", "proc", 0, NULL);
  mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
  if (ioperm(CONSOLE, 1, 1) != 0) return 1;
  int32_t status = -1;
  pid_t child = fork();
  if (child == 0) {
    standard(0, "/job/stdin", O_RDONLY);
    standard(1, "/job/stdout", O_WRONLY | O_CREAT);
    standard(2, "/job/stderr", O_WRONLY | O_CREAT);
    char *words[256] = {0}, *text = content("/job/arguments", &bytes);
    for (int count = 0; count < 255 && bytes > 0; ++count) {
      uint64_t length = strlen(text) + 1;
      words[count] = text;
      text += length;
      bytes -= length < bytes ? length : bytes;
    }
    execv(words[0], words);
    _exit(127);
  }
  waitpid(child, &status, 0);
  answer(MARK, sizeof MARK - 1);
  answer(&status, sizeof status);
  give("/job/stdout");
  give("/job/stderr");
  char *folder = content("/job/folders", &bytes);
  for (char *end = folder + bytes; folder < end; folder += strlen(folder) + 1) {
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
      char path[4096];
      if (entry->d_type != DT_REG) continue;
      snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
      give(path);
    }
  }
  answer("", 1);
  for (;;) pause();
}
