cdef enum:
    Q_ROWS = 128   # query rows (token x head) of one unit of work
