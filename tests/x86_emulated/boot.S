# The whole firmware: from reset into flat 32-bit mode, sectors of the disk into memory, and on to Linux.
        .section .text
        .code16
start:  cli
        lgdtl %cs:gdtr
        movl $0x11, %eax
        movl %eax, %cr0
        ljmpl $0x10, $(0xffff0000 + flat)
        .code32
flat:   movw $0x18, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movw %ax, %fs
        movw %ax, %gs
        movl $0x7000, %esp
        movl $(0xffff0000 + segments), %esi
segment:
        lodsl
        movl %eax, %ebx          # sector
        lodsl
        movl %eax, %edi          # address
        lodsl
        movl %eax, %ebp          # runs of 256 sectors
        testl %ebp, %ebp
        jz done
run:    movw $0x1f2, %dx
        xorl %eax, %eax
        outb %al, %dx
        incw %dx
        movl %ebx, %eax
        outb %al, %dx
        incw %dx
        shrl $8, %eax
        outb %al, %dx
        incw %dx
        shrl $8, %eax
        outb %al, %dx
        incw %dx
        shrl $8, %eax
        orb $0xe0, %al
        outb %al, %dx
        incw %dx
        movb $0x20, %al
        outb %al, %dx
        pushl $256
sector: movw $0x1f7, %dx
wait:   inb %dx, %al
        andb $0x88, %al
        cmpb $0x08, %al
        jne wait
        movw $0x1f0, %dx
        movl $256, %ecx
        cld
        rep insw
        decl (%esp)
        jnz sector
        popl %eax
        addl $256, %ebx
        decl %ebp
        jnz run
        jmp segment
done:   movl %ebx, %esi
        movl %edi, %eax
        xorl %ebx, %ebx
        xorl %edi, %edi
        jmp *%eax
        .balign 8
gdt:    .quad 0, 0, 0x00cf9b000000ffff, 0x00cf93000000ffff
gdtr:   .word 31
        .long 0xffff0000 + gdt
        .org 0x200              # filled in by machine.py: first sector, address and runs of each part;
segments:                       # then the parameters' address, the entry point, and no runs
        .org 0xfff0
        .byte 0xe9
        .word (start - . - 2) & 0xffff
        .org 0x10000
