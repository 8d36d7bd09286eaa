"""The rule table of the tales: every sentence the generator writes and the parser accepts.

A rule is ``symbol -> alternatives``; an alternative is text with slots in braces. Two kinds of slot:

* *bound* slots hold one value for the whole tale (the hero, the place, ...): ``BOUND`` says which words may stand there;
* *free* slots (``FREE``) are drawn anew each time.

``SENTENCES`` are the rules for whole sentences, by the part they play; ``PLOTS`` say which parts follow each other.
A part whose name ends in ``?`` may be left out; ``a|b`` is a choice of parts.
"""

# ---- words that stay the same throughout a tale --------------------------------------------------------------------------------------

GIRLS = """Mira Anna Lily Nora Ella Ruby Ivy Clara Rosa Emma Lucy Mina Tilda Greta Hana Zoe Maya Sofia Alma Edith Flora Ida Juno Kira Lena
Nell Olga Petra Runa Sally Tess Una Vera Wilma Yara Daisy Elsa Freya Holly Iris Martha Pearl Sunny Molly Nina Polly Hazel Agnes""".split()
BOYS = """Tom Ben Leo Max Finn Otto Hugo Emil Noah Oscar Peter Theo Jack Sam Will Felix Jonas Karl Lars Milo Nils Owen Paul Rufus Simon Toby
Victor Walter Axel Bruno Casper Dan Erik Fred George Henry Ivan Jasper Kit Luke Martin Oliver Pip Robin Stefan Tim Ulf Amos""".split()
# Made-up names teach the model to copy a name that it has never seen.
NAME_STARTS = """Ba Be Bo Bri Ca Co Da De Do Dra Fa Fe Fi Ga Go Gri Ha He Jo Ka Ki Ko La Le Li Lo Lu Ma Me Mo Na Ne No Pa Pe Po Ra Re Ri Ro
Sa Se Sha So Ta Te Ti To Tri Va Ve Vi Wa We Wi Xa Ya Za Ze Zo Zu""".split()
NAME_MIDDLES = "b bb d dd g l ll m mm n nn nd p pp r rr rl s ss st sh t tt v x z".split()
GIRL_ENDS = "a ia ana ina ella etta y ie elle".split()
BOY_ENDS = "o in on er us an ert ick os ard".split()

BOUND = {
    "place": [f"the {p}" for p in """sea river forest hill mill market castle garden lake lighthouse bridge meadow harbour village cave orchard tower
        well farm beach island valley marsh pond barn""".split()],
    "thing": """kite lantern key drum bell boat hat scarf ball book spoon flute basket map ring button cup feather mitten whistle coat blanket
        teapot mirror clock candle ribbon wagon broom kettle pearl locket""".split(),
    "look": "red blue green yellow golden silver white small little tiny wooden shiny round striped brown purple warm pretty".split(),
    "animal": """fox bear lark cat mouse hen goose wolf hare frog horse dragon donkey crow rabbit hedgehog squirrel duck goat badger swan
        turtle seal robin deer mole pony""".split(),
    "goods": """apples pears eggs shells stones berries nuts coins buns plums carrots flowers fish cakes cherries beans candles turnips
        mushrooms chestnuts""".split(),
    "trait": "brave kind clever quiet curious cheerful shy gentle stubborn merry lonely patient proud small young sleepy hungry busy".split(),
    "far": [],  # another place than `place`
    "family": "mother father grandmother grandfather sister brother aunt uncle".split(),
    "fear": ["the dark", "the thunder", "deep water", "loud noises", "high places", "the shadows", "the night"],
    "wish": ["fly like a bird", "sail across the water", "hear the stars sing", "talk with the animals", "sleep under the stars", "climb the highest hill",
             "dance in the snow", "see the whole world", "play the flute", "bake the best bread in the land", "find a treasure", "catch a falling star"],
    "mood": "big old wise friendly tired shy grey young talking funny grumpy gentle thin fat clever".split(),  # the animal's
    "season": "spring summer autumn winter".split(),
    "weather": "rain snow wind storm fog sunshine frost".split(),
}
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen""".split()
PRONOUNS = {  # slot -> (for a girl, for a boy); the same with an f in front for the friend
    "he": ("she", "he"), "his": ("her", "his"), "him": ("her", "him"), "girl": ("girl", "boy"),
}

# ---- words drawn anew ----------------------------------------------------------------------------------------------------------------

FREE = {
    "day": "day morning evening afternoon".split(),
    "when": ["one {day}", "one {sky} {day}", "early one {day}", "on a {sky} {day}", "one day in {season}"],
    "sky": "cold warm bright grey windy quiet sunny misty golden clear chilly".split(),
    "home": ["a little house", "a small cottage", "a stone house", "a wooden hut", "a tall house", "a crooked house", "a cosy house", "a white cottage"],
    "walked": "walked ran hurried wandered went strolled skipped".split() + ["walked slowly", "went alone"],
    "looked": ["looked", "searched", "hunted"],
    "spots": ["under the bed", "behind the door", "in the tall grass", "under the stairs", "beside the path", "behind the old oak", "under a stone",
              "in the hay", "near the fence", "behind the well", "in the hollow tree", "under the bench", "among the leaves", "by the water"],
    "feeling": "sad afraid tired worried lonely cold lost sorry cross".split(),
    "glad": "happy glad proud pleased merry cheerful content delighted".split(),
    "softly": "softly kindly gently quietly slowly shyly bravely".split(),
    "loudly": "loudly angrily crossly sharply".split(),
    "spoke": ["said", "whispered"],
    "hurried": ["hurried", "ran", "went", "walked"],
    "said": ["said", "answered", "replied", "whispered"],
    "asked": ["asked", "said"],
    "cried": ["cried", "shouted", "called"],
    "meal": ["warm soup", "fresh bread", "hot tea", "honey cake", "apple pie", "sweet porridge", "bread and cheese", "roasted nuts", "plum cake", "hot milk"],
    "food": ["a piece of bread", "a bowl of soup", "a warm bun", "a slice of cheese", "a cup of milk", "an apple", "a handful of nuts", "a honey cake"],
    "long": ["all day", "all night", "for a long time", "for hours", "until evening", "from morning to night", "until the stars came out"],
    "together": ["together", "side by side", "hand in hand", "like old friends"],
    "promise": ["never to quarrel again", "to share everything", "to be friends for ever", "to tell the truth", "to listen first", "to help each other"],
    "lesson": ["a kind word costs nothing", "a friend is better than gold", "sharing makes a small thing big", "patience opens many doors",
               "even the smallest can help", "every storm comes to an end", "two can do what one cannot", "a good deed always comes back",
               "it is brave to say sorry", "home is the best place of all", "the best wishes are shared", "kindness makes light work"],
    "number": "three five seven nine ten twelve".split(),
    "trouble": ["I have lost my way", "my foot is caught in a root", "I have nothing to eat", "I am cold to the bone", "I cannot find my home", "my nest fell down",
                "I hurt my leg", "no one will play with me", "I cannot sleep at night", "the wind blew my house away"],
    "praise": ["You are very kind", "You are a true friend", "I will never forget this", "You have a good heart", "Thank you with all my heart", "No one was ever so kind to me"],
    "sound": ["a soft knock", "a small voice", "a strange song", "a loud crash", "a sad cry", "a merry tune"],
}

# ---- sentences -----------------------------------------------------------------------------------------------------------------------

SENTENCES = {
    "opening": [
        "Once upon a time there was a {trait} {girl} named {hero}.",
        "Once upon a time there lived a {trait} {girl} called {hero}.",
        "Once upon a time, {hero} lived in {home} near {place}.",
        "Once upon a time, a {trait} {girl} named {hero} lived near {place}.",
        "Once upon a time there was a {girl} named {hero} who lived in {home}.",
        "Once there was a {trait} {girl} named {hero} who loved {place}.",
        "There was once a {trait} {girl} named {hero} who lived by {place}.",
        "Long ago, a {trait} {girl} named {hero} lived in {home} by {place}.",
        "In {home} near {place} lived a {trait} {girl} named {hero}.",
        "{hero} was a {trait} {girl} who lived with {his} {family} near {place}.",
        "{hero} and {his} {family} lived in {home} by {place}.",
        "Near {place} lived a {trait} {girl} whose name was {hero}.",
        "A {trait} {girl} named {hero} lived in {home}.",
        "Everyone near {place} knew {hero}, the {trait} {girl}.",
    ],
    "outing": [
        "{when}, {hero} {walked} to {place}.",
        "{when}, {he} {walked} to {place} with {his} {family}.",
        "{when}, {hero} {walked} to {place} with a basket of {goods}.",
        "{when}, {his} {family} sent {him} to {place}.",
        "{when}, {he} {walked} along the path to {place}.",
        "Every {day}, {he} {walked} to {place} and back.",
        "{when}, {hero} woke early and {walked} to {place}.",
    ],
    "weather_rain": [
        "The rain fell {long}.", "It rained {long}, and the path turned to mud.", "Soft rain was falling on {place}.",
        "The rain drummed on the roof {long}.", "Then dark clouds came, and it began to rain.", "Rain ran down the windows, and {place} was grey.",
        "The rain made rings in every puddle.",
    ],
    "weather_snow": [
        "Snow fell {long}.", "The snow lay deep around {place}.", "White snow covered {place}.", "It snowed {long}, and the world grew quiet.",
        "Soft snow came down like feathers.", "The snow was so deep that {hero} could hardly walk.", "Then the first snow of {season} began to fall.",
    ],
    "weather_wind": [
        "The wind blew {long}.", "A strong wind blew over {place}.", "The wind sang in the trees near {place}.", "The wind pulled at {his} coat and hair.",
        "Then the wind grew strong and shook the trees.", "The wind chased the leaves around {place}.",
    ],
    "weather_storm": [
        "A great storm came over {place}.", "The storm roared {long}.", "Thunder rolled, and the sky over {place} turned black.",
        "Then a storm broke, and {hero} ran for shelter.", "The storm bent the trees and rattled the doors.", "Lightning flashed above {place}.",
    ],
    "weather_fog": [
        "A thick fog lay over {place}.", "The fog was so thick that {hero} could not see the path.", "Grey fog crept in from {place}.",
        "Fog covered everything, and all was still.", "Then the fog came down, and the world grew small.",
    ],
    "weather_sunshine": [
        "The sun shone on {place} {long}.", "Warm sunshine lay on {place}.", "The sky was blue, and the sun was warm.", "Sunshine danced on the roofs near {place}.",
        "Not one cloud was in the sky.", "Bees hummed in the warm sunshine.",
    ],
    "weather_frost": [
        "Frost sparkled on every leaf.", "The frost had painted flowers on the windows.", "It was so cold that the water near {place} froze.",
        "Hard frost lay on the ground, and {his} fingers were cold.", "Frost covered {place} like sugar.",
    ],
    # -- a lost thing
    "has_thing": [
        "{he} had a {look} {thing} that {he} loved very much.", "{hero} owned a {look} {thing} and took it everywhere.",
        "{his} {family} had given {him} a {look} {thing}.", "{hero} never went out without {his} {look} {thing}.",
        "{his} dearest treasure was a {look} {thing}.", "For {his} birthday {he} got a {look} {thing}.",
    ],
    "loses_thing": [
        "{when}, the {look} {thing} was gone.", "{when}, {he} lost the {thing} near {place}.", "But {when} {he} dropped the {thing} near {place}.",
        "{when}, {hero} could not find {his} {thing}.", "Then one {day} the {thing} was nowhere to be found.", "But the {thing} slipped from {his} hand and was gone.",
    ],
    "searches": [
        "{he} {looked} {spots} and {spots}, but it was not there.", "{hero} {looked} for it {long}.", "{he} {looked} {spots}, but found only dust.",
        "{hero} sat down and wept, for {he} had {looked} everywhere.", "{he} {looked} {spots}, {spots} and {spots}.", "{he} {looked} high and low {long}.",
    ],
    "friend_helps": [
        '"Do not cry," said {friend}.', '"I will help you," said {friend} {softly}.', '"Let us look together," {said} {friend}.',
        "{friend} took {his} hand and helped {him} look.", "{hero} asked {friend} for help, and they looked again.",
        '"Have you seen my {thing}?" {asked} {hero}.', "Then {friend} came by and asked what was wrong.",
    ],
    "animal_found": [
        "Then a {animal} came by with the {thing}.", "A {animal} had found the {thing} {spots}.", '"Is this yours?" asked the {animal}.',
        "At last a {animal} showed {him} the way to the {thing}.", "A {mood} {animal} had been keeping the {thing} safe.",
    ],
    "found": [
        "At last {hero} found the {thing} {spots}.", "There it was, {spots}.", "{hero} found the {look} {thing} {spots} and laughed for joy.",
        "{friend} found the {thing} {spots} and gave it back to {hero}.", "In the end they found the {thing} {spots}.", "And there, {spots}, lay the {look} {thing}.",
    ],
    # -- a quarrel
    "friends": [
        "{his} best friend was {friend}.", "{hero} and {friend} did everything together.", "{he} played with {friend} near {place} every day.",
        "{friend} lived next door and was {his} best friend.", "{hero} and {friend} had been friends since they were small.",
    ],
    "quarrel": [
        "{when}, {hero} and {friend} quarrelled over a {look} {thing}.", "But {when} they quarrelled about a {look} {thing}.",
        "{when}, they both wanted the same {look} {thing}.", "{when}, {friend} broke the {look} {thing} that {hero} loved.",
        "{when}, {friend} took the {look} {thing} without asking.", "{when}, they could not agree who should carry the {look} {thing}.",
    ],
    "anger": [
        '"It is mine!" {cried} {hero} {loudly}.', '"You always take my things," said {hero} {loudly}.', '"I will never play with you again!" {cried} {friend}.',
        "{hero} stamped {his} foot and went home.", "{friend} ran away and did not look back.", "They turned their backs and did not speak {long}.",
        '"Give it back!" {cried} {friend} {loudly}.', '"I had it first," said {friend} {loudly}.',
    ],
    "regret": [
        "That night {hero} could not sleep.", "Without {friend}, the days were long and dull.", "{hero} sat alone by {place} and felt {feeling}.",
        "Soon {hero} was {feeling} and missed {friend}.", "The {thing} was no fun without {friend}.", "{hero} thought about {friend} {long}.",
        "{his} {family} said that {lesson}.",
    ],
    "sorry": [
        '"I am sorry," said {hero} {softly}.', '"Please forgive me," said {friend} {softly}.', '"Let us share it," said {hero}.',
        '"You may have it first," {spoke} {friend} {softly}.', "{hero} went to {friend} and said that {he} was sorry.",
        "{friend} held out a hand, and {hero} took it.", '"I missed you," {spoke} {friend}.', '"A {thing} is only a {thing}," {spoke} {hero}.',
    ],
    "peace": [
        "So they shared the {thing} and were friends again.", "They promised {promise}.", "From that day on they took turns with the {look} {thing}.",
        "They laughed and ate {meal} {together}.", "Then {hero} and {friend} walked home {together}.", "They mended the {thing} {together} and promised {promise}.",
    ],
    # -- a wish
    "wishes": [
        "more than anything, {hero} wished to {wish}.", "{hero} had one wish, and it was to {wish}.", "every night {he} wished to {wish}.",
        "{he} looked at the stars and wished to {wish}.", '"I wish I could {wish}," said {hero}.', "all {his} life {hero} had wanted to {wish}.",
        '"If only I could {wish}," said {hero} {softly}.',
    ],
    "wishes_thing": [
        "more than anything, {hero} wished for a {look} {thing}.", "{hero} had one wish, and it was a {look} {thing}.", "every night {he} wished for a {look} {thing}.",
        '"I wish I had a {look} {thing}," said {hero}.', '"If only I had a {look} {thing}," said {hero} {softly}.', "all {his} life {hero} had wanted a {look} {thing}.",
    ],
    "wishes_far": [
        "more than anything, {hero} wished to see {far}.", "{hero} had one wish, and it was to see {far}.", "{he} had never seen {far}, and {he} longed for it.",
        '"I wish I could see {far}," said {hero}.', "every night {he} dreamed of {far}.", "all {his} life {hero} had wanted to see {far}.",
    ],
    "meets": [
        "{when}, {he} met a {animal} near {place}.", "Near {place} {he} met a {mood} {animal}.", "On the way {hero} met a {animal}.",
        "Then a {mood} {animal} came out of the bushes.", "{when}, {hero} heard {sound}, and there stood a {animal}.", "There, {spots}, sat a {mood} {animal}.",
        "A {animal} was sitting {spots}.",
    ],
    "offer": [
        '"I can grant one wish," said the {animal}.', '"Why do you look so {feeling}?" asked the {animal}.', '"Tell me your wish," said the {animal} {softly}.',
        '"What do you want most of all?" asked the {animal}.', '"Follow me," said the {animal}, "and do not look back."',
        '"Close your eyes and count to {number}," said the {animal}.',
    ],
    "answer": [
        '"I only want a friend," {said} {hero}.', '"Will you come with me?" {asked} {hero}.', "{hero} told the {animal} all about it.",
        "{hero} was {feeling}, but {he} followed the {animal}.", '"May I share it with my friends?" {asked} {hero}.', '"Do you know the way?" {asked} {hero} {softly}.',
    ],
    "greet": [
        '"Good {day}," said the {animal} {softly}.', '"Where are you going?" asked the {animal}.', '"Sit down and rest with me," said the {animal}.',
        "{hero} wished it a good {day}, and the {animal} bowed.", '"Shall we go on {together}?" asked the {animal}.', '"I have not seen you here before," said the {animal}.',
        '"Are you not cold in this {weather}?" asked the {animal}.', "the {animal} was {feeling}, for it had no one to talk to.",
    ],
    "visit": [
        "{hero} and the {animal} ate {meal} {together}.", "they played near {place} {long}.", "the {animal} told {him} a tale about {far}.", "{hero} gave the {animal} {food}.",
        "the {animal} gave {him} a basket of {goods}.", "they danced and sang {long}.", "the {animal} showed {him} a secret path to {far}.", "they talked {long}, and the time flew by.",
    ],
    "answer_wish": [
        '"I wish to {wish}," {said} {hero} {softly}.', "{hero} told the {animal} about {his} wish.", '"Can you teach me to {wish}?" {asked} {hero}.',
    ],
    "answer_thing": [
        '"I want a {look} {thing}," {said} {hero} {softly}.', "{hero} told the {animal} about the {thing}.", "{hero} closed {his} eyes and counted to {number}.",
    ],
    "answer_far": [
        '"Do you know the way to {far}?" {asked} {hero}.', '"Please take me to {far}," {said} {hero} {softly}.', "{hero} told the {animal} about {far}.",
    ],
    "granted": [
        "and the wish came true that very {day}.", "the {animal} showed {him} how, and it was not hard at all.", "before the {day} was over, the wish had come true.",
        "the {animal} nodded, and {hero} could hardly believe it.", "and so {he} did, with the {animal} at {his} side.",
    ],
    "granted_thing": [
        "when {he} opened {his} eyes, there lay a {look} {thing}.", "the {animal} smiled and gave {him} a {look} {thing}.", "the next {day} a {look} {thing} lay before the door.",
        "the {animal} dug {spots} and brought out a {look} {thing}.",
    ],
    "granted_far": [
        "the {animal} led {him} to {far}, and it was more beautiful than a dream.", "the {animal} took {him} on its back and carried {him} to {far}.",
        "they {walked} {long}, and then {hero} saw {far}.", "at last they came to {far}, and {hero} was {glad}.",
    ],
    # -- an animal in trouble
    "trouble": [
        '"Help me," said the {animal}, "{trouble}."', '"{trouble}," said the {animal} {softly}.', "The {animal} was {feeling} and shook all over.",
        '"Please help me," said the {animal}.', "The {animal} had hurt its leg and could not walk.", "The poor {animal} was {feeling} and hungry.",
        '"What is wrong?" {asked} {hero}.',
    ],
    "help": [
        "{hero} gave the {animal} {food}.", "{hero} wrapped the {animal} in {his} {look} {thing}.", '"Come home with me," {spoke} {hero} {softly}.',
        "{he} carried the {animal} home and made {meal}.", "{hero} sat with the {animal} {long}.", "{he} shared {his} {meal} with the {animal}.",
        '"Do not be afraid," {spoke} {hero} {softly}.', "{hero} lit a fire, and soon the {animal} was warm.",
    ],
    "thanks": [
        '"{praise}," said the {animal}.', "The {animal} thanked {him} and gave {him} a {look} {thing}.", '"{praise}," said the {animal} {softly}.',
        "The {animal} bowed and promised to come back.", "From that day the {animal} followed {him} everywhere.",
    ],
    "returned": [
        "Years later the {animal} came back and helped {him} in return.", "When {hero} was lost, the {animal} showed {him} the way home.",
        "That winter the {animal} brought {him} {goods} every day.", "Now {hero} and the {animal} eat {meal} together every {day}.",
        "The next {day} a basket of {goods} stood before the door.", "When {hero} grew {feeling}, the {animal} sang to {him}.",
    ],
    # -- a small sum
    "gather": [
        "{when}, {hero} found {n1} {goods}, and {friend} found {n2}.", "{when}, {hero} picked up {n1} {goods}, and {friend} had {n2} more.",
        "{hero} had {n1} {goods}, and {friend} had {n2}.", "{when}, {hero} carried {n1} {goods} and {friend} carried {n2}.",
        "{when}, {he} bought {n1} {goods}, and {his} {family} gave {him} {n2} more.", "{hero} counted {n1} {goods} in {his} basket and {n2} in the bag.",
    ],
    "ask_sum": [
        '"How many {goods} do we have?" {asked} {friend}.', '"How many is that?" {asked} {friend}.', "They sat down by {place} to count them.",
        '"Let us put them together," {spoke} {hero}.', '"Can you count them all?" {asked} {friend}.', "They laid all the {goods} in one row.",
    ],
    "sum": [
        '"{n1} and {n2} make {sum}," {said} {hero}.', "{n1} and {n2} make {sum}.", '"{n1} and {n2} are {sum}," {said} {friend} {softly}.',
        "{hero} counted {n1} and {n2}, and that made {sum}.", 'So they had {sum} {goods}, for {n1} and {n2} make {sum}.', '"{n1} plus {n2} is {sum}!" {cried} {hero}.',
    ],
    "give_away": [
        "They gave {n2} of the {sum} {goods} to a {animal}, so {n1} were left.", "{hero} gave {n1} of the {sum} {goods} to {friend} and kept {n2}.",
        "They ate {n2} of the {sum} {goods}, and {n1} were left.", "A {animal} took {n1} of the {sum} {goods}, and {n2} were left.",
    ],
    "share": [
        "They shared the {goods} and were {glad}.", "They baked a pie with the {goods} and ate it {together}.", "There was enough for everyone.",
        "{hero} gave the biggest part to {friend}.", "They carried the {goods} home {together}.", '"That is enough for us all," {spoke} {hero}.',
        "That evening they had {goods} and {meal}.",
    ],
    # -- a brave deed
    "fear": [
        "{hero} was afraid of {fear}.", "Everyone was afraid of {fear}, and {hero} most of all.", "{he} had always been afraid of {fear}.",
        "{hero} did not like {fear} at all.",
    ],
    "call_friend": [
        "{when}, {friend} did not come home from {place}.", "{when}, {friend} was lost near {place}.", '"Help!" {cried} {friend} from {place}.', "then {he} heard that {friend} was in trouble.",
    ],
    "call_animal": [
        "{when}, {he} heard {sound} from {place}.", "then {hero} heard {sound}.", "suddenly {sound} came from {place}.", "then news came that a {animal} was lost near {place}.",
    ],
    "deed": [
        "{hero} took a {look} {thing} and {hurried} to {place}.", '"I must be brave," {spoke} {hero}.', "{his} knees shook, but {he} {hurried} to {place}.",
        "{he} {hurried} through the {weather} with only a {look} {thing}.", "With a {look} {thing} in {his} hand {he} {hurried} on.",
        '"I am coming!" {cried} {hero}.', "{hero} held up the {look} {thing} and called {long}.",
    ],
    "rescue_friend": [
        "there {he} found {friend}, and they came home {together}.", "{hero} pulled {friend} out and held {fhim} tight.", '"You came!" {cried} {friend}.',
        "{friend} was sitting {spots}, {feeling} but safe.", "{friend} was {feeling}, but not hurt.",
    ],
    "rescue_animal": [
        "{he} found a {animal} {spots} and carried it home.", "it was only a {animal}, {feeling} and small.", "there, {spots}, sat a {mood} {animal}.", "{hero} found a {feeling} {animal} {spots}.",
    ],
    "proud": [
        "{his} {family} was {glad} and hugged {him}.", "After that {hero} was never afraid of {fear} again.", "Everyone near {place} called {him} brave.",
        '"I was afraid," {spoke} {hero}, "but I went."', "They gave {him} {meal} and a {look} {thing}.", "{hero} slept well that night.",
    ],
    # -- endings
    "ending": [
        "And they lived happily ever after.", "From that day on, {hero} knew that {lesson}.", "And {hero} went home {glad}.", "That night {hero} slept well and dreamed of {place}.",
        "And so {hero} learned that {lesson}.", "{hero} smiled, for {lesson}.", "Ever since, {hero} has been {glad}.", "And every {day} after that, {hero} was {glad}.",
        "{hero} never forgot that {day} near {place}.", "{hero} told the tale to {his} {family}, and they laughed {together}.", "So ends the tale of {hero} and {place}.",
        "At home {his} {family} was waiting with {meal}.", "And if you go to {place}, you may meet {hero} there.",
    ],
    "ending_friend": [
        "And {hero} and {friend} were friends for ever.", "{hero} and {friend} went home and ate {meal}.", "From that day on, {hero} and {friend} knew that {lesson}.",
        "{hero} and {friend} often laughed about that {day}.", "And {hero} and {friend} lived happily ever after.",
    ],
    "ending_animal": [
        "And {hero} and the {animal} were friends for ever.", "Ever since, {hero} and the {animal} meet near {place} every {day}.", "And the {animal} lived with {hero} happily ever after.",
        "From that day on, {hero} was kind to every {animal}.",
    ],
}

PLOTS = {
    "lost": ["opening", "has_thing", "weather?", "loses_thing", "searches?", "friend_helps?|animal_found?", "found", "ending|ending_friend?"],
    "quarrel": ["opening", "friends?", "quarrel", "anger", "weather?", "regret?", "sorry", "peace", "ending_friend?"],
    "wish": ["opening", "wishes", "weather?", "meets", "offer", "answer_wish?", "granted", "ending|ending_animal?"],
    "wish_thing": ["opening", "wishes_thing", "weather?", "meets", "offer", "answer_thing?", "granted_thing", "ending|ending_animal?"],
    "wish_far": ["opening", "wishes_far", "weather?", "meets", "offer?", "answer_far", "granted_far", "ending|ending_animal?"],
    "help": ["opening", "outing?", "weather?", "meets", "trouble", "help", "thanks|returned", "ending_animal|ending?"],
    "sum": ["opening", "friends?", "gather", "ask_sum?", "sum", "give_away?", "share", "ending|ending_friend?"],
    "brave_friend": ["opening", "fear?", "weather", "call_friend", "deed", "rescue_friend", "proud", "ending_friend?"],
    "brave_animal": ["opening", "fear?", "weather", "call_animal", "deed", "rescue_animal", "proud", "ending?"],
    "walk": ["opening", "outing", "weather?", "meets", "greet", "answer?", "visit", "ending|ending_animal"],
}
# ---- talk ----------------------------------------------------------------------------------------------------------------------------

ASK = ["Tell me a tale about {topic}.", "Tell me a story about {topic}.", "Please tell me a tale about {topic}.", "Can you tell me a story about {topic}?",
       "Write a short tale about {topic}.", "A tale about {topic}, please.", "I want to hear about {topic}.", "Do you know a story about {topic}?",
       "Tell me about {topic}.", "Write a story about {topic}."]
ASK_ANY = ["Tell me a tale.", "Tell me a story.", "Tell me another one.", "Please tell me a tale.", "A story, please.", "Write a short tale.", "Tell me a short story."]
SYSTEM = ["You are a teller of short tales.", "You tell short and friendly tales.", "You are a helpful assistant."]
SMALL_TALK = [  # (what the user says, what the model answers)
    (["Hello!", "Hello.", "Hi!", "Hi there.", "Hello there!", "Good morning.", "Good evening.", "Hey!"],
     ["Hello! Would you like to hear a tale?", "Hello! Tell me a name and a place, and I will tell you a tale.", "Good day! Shall I tell you a story?"]),
    (["Who are you?", "What are you?", "What can you do?", "What is your name?", "Help."],
     ["I am a small teller of tales. Give me a name and a place, and I will begin.", "I am a very small model that tells short tales. Ask me for one!"]),
    (["Thank you.", "Thanks!", "Thank you!", "That was nice.", "Well done!"],
     ["You are welcome! Shall I tell you another?", "You are welcome. Come back for another tale!"]),
    (["How are you?", "How are you today?"], ["I am well, thank you. Shall I tell you a tale?"]),
    (["Goodbye.", "Bye!", "Good night."], ["Goodbye, and sweet dreams!", "Goodbye! Come back for another tale."]),
]
SUM_TALK = (["What is {n1} plus {n2}?", "How much is {n1} plus {n2}?", "What is {n1} and {n2}?", "Can you add {n1} and {n2}?"],
            ["{n1} plus {n2} is {sum}.", "{n1} and {n2} make {sum}."])
