/* What the emulated machine's process 1 needs of its ports: sectors in, bytes out, and the number of instructions. */
#include <stdint.h>
#include <stdio.h>
#include <sys/io.h>

enum { DATA = 0x1f0, COUNT = 0x1f2, LOW = 0x1f3, MIDDLE = 0x1f4, HIGH = 0x1f5, DEVICE = 0x1f6, COMMAND = 0x1f7 };
enum { READ = 0x20, READY = 0x08, BUSY = 0x80, CONSOLE = 0xe9, SECTOR = 512, RUN = 256 };

int open_ports(void) { return ioperm(DATA, 8, 1) | ioperm(CONSOLE, 1, 1); }

/* Reads whole sectors of the second disk; nothing else drives it. */
void read_sectors(uint32_t first, uint32_t sectors, uint8_t *to) {
  while (sectors != 0) {
    uint32_t run = sectors < RUN ? sectors : RUN;
    outb(0xf0 | (first >> 24), DEVICE);
    outb(run & 0xff, COUNT);
    outb(first & 0xff, LOW);
    outb((first >> 8) & 0xff, MIDDLE);
    outb((first >> 16) & 0xff, HIGH);
    outb(READ, COMMAND);
    for (uint32_t sector = 0; sector < run; ++sector, to += SECTOR) {
      while ((inb(COMMAND) & (READY | BUSY)) != READY) {
      }
      insw(DATA, to, SECTOR / 2);
    }
    first += run;
    sectors -= run;
  }
}

/* Bochs writes what comes to this port to its standard output. */
void write_host(const uint8_t *from, uint64_t bytes) { outsb(CONSOLE, from, bytes); }

/* Its clock ticks once for each instruction. */
uint64_t instructions(void) {
  uint32_t low, high;
  __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
  return (uint64_t)high << 32 | low;
}
