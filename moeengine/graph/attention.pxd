cdef enum:
    Q_ROWS = 128        # query rows (token x head) of one unit of work
    SPLIT_TOKENS = 4    # up to so many tokens the keys are split over the team
