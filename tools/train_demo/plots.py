"""The plots of the stories: each is a list of beats, told in order.

A beat is a template (see ``templates``). ``{N}`` is the hero, ``{F}`` the friend, and ``{he}``,
``{him}``, ``{his}`` follow the hero. A plot has at most four or five beats of two or three
sentences, so that a story has between 80 and 200 tokens and always reaches its end.
"""

from tools.train_demo.templates import phrases

PLOTS: dict[str, tuple[str, ...]] = {
    "a lost {thing}": (
        "{N} had [a treasure|one thing] that {he} loved more than anything: a {thing}. "
        "[It was a gift from {his} grandmother.|{He} took it everywhere.|{He} looked at it every"
        " night before bed.]",
        "One {weather} [morning|afternoon], {N} [went|walked|ran] to {place} to play. [When it was"
        ' time to go home|A little later|In the evening], the {thing} was gone! "Oh no!"'
        ' [cried|said] {N}. "Where is my {thing}?"',
        "{He} looked [under|behind] {spot}, but [it was not there|there was nothing]. {He} looked"
        " [near|beside] {spot2}, but [there was only a sleepy beetle|found only dry leaves]. {N}"
        " [began to cry|sat down and felt very sad].",
        'Then {F} the {friend} came by. "[Do not cry|Do not worry]," said {F}. "We will look'
        ' together." They [looked and looked|searched high and low] until {F} pointed at {spot3}.'
        " There was the {thing}!",
        '"Thank you, {F}!" said {N}, and gave {F} a big hug. [Looking is easier with a friend.|'
        "From that day on, {N} took good care of the {thing}.|They played together until the sun"
        " went down.]",
    ),
    "friendship": (
        "[{N} had no friends|{N} was often alone], and the days felt [long|slow and grey]."
        ' ["I wish I had someone to play with," {he} said.|Every evening {he} looked at the stars'
        " and wished for a friend.]",
        "One {weather} day, {N} went for a walk to {place}. There {he} heard a [small|quiet] sound."
        " It was {F}, a {friend}, who was [stuck in the mud|sitting alone and crying|lost and far"
        " from home].",
        '"[Can I help you|What is wrong]?" asked {N}. "[Please do|Yes, please]," said {F}. [{N}'
        " worked hard and did not give up|{N} took {F} by the hand and helped as well as {he}"
        " could]. [Soon|After a while] {F} was safe and smiling.",
        '"You are very kind," said {F}. "Will you be my friend?" {N} smiled and said,'
        ' "[Yes, with all my heart|I would love that]." They shared {food} and told each other'
        " funny stories.",
        "[After that day|From then on], {N} was never lonely again. [Every morning the two friends"
        " met at {place}.|A kind heart always finds a friend.]",
    ),
    "being brave": (
        "{N} was afraid of {fear}. [Everybody knew it, and some laughed.|{He} never told anyone,"
        " because {he} felt ashamed.]",
        'One [dark|stormy|cold] [night|evening], {F} the {friend} did not come home. "Someone must'
        " look for {F},\" said {his} mother. {N}'s [knees|hands] shook, but {he} [took a lantern|"
        "took a deep breath] and went out.",
        "The way to {place} was [long and lonely|dark and full of shadows]. {His} heart beat"
        ' fast. "I am [small|scared], but'
        ' my friend needs me," {he} said, and {he} [kept walking|did not turn back].',
        'At last {N} found {F} behind {spot}. "You came!" [cried|said] {F}. "I was so scared."'
        ' "[I was scared too|So was I]," said {N}, and they went home together.',
        "[Everyone cheered when they came back.|{His} mother hugged them both and gave them"
        " {food}.]"
        " {N} had learned that being brave means [going on even when you are afraid|helping a"
        " friend although you are scared].",
    ),
    "sharing": (
        "One {weather} morning, {N} [packed|took] {food} for lunch and walked to {place}. [{He} was"
        " very hungry.|{He} could not wait to eat it.]",
        'On the way {he} met {F}, a [thin|tired|hungry] {friend}. "I have not eaten [all day|since'
        ' yesterday]," said {F}. {N} looked at the food. There was only enough for one.',
        '{N} thought for a moment. Then {he} [cut it in two|smiled] and said, "[Here, take half|'
        'Let us share it]." They sat down near {spot} and ate together. It [tasted better than'
        " ever|was the best lunch of all].",
        "The next [winter|week], a storm came and {N} had nothing left to eat. [There was a knock"
        " at the door.|Then someone called {his} name.] It was {F} with a basket full of {food2}!"
        ' "You shared with me," said {F}. "Now I share with you."',
        "[{N} laughed and opened the door wide.|They ate by the fire and were warm.] [What you give"
        " comes back to you.|And so they stayed friends for all their days.]",
    ),
    "a long journey": (
        '{N} had never seen {goal}. "[One day I will go there|I want to see it with my own eyes],"'
        " {he} said. [Everyone said it was too far.|So {he} packed a small bag.]",
        "[Early in the morning|When the sun came up], {N} set out. [First|At first] {he}"
        " walked past"
        ' {place} and asked {F} the {friend}, "Which way is it to {goal}?" "Follow the'
        ' [river|stars|birds|old road]," said {F}.',
        "The way was [long and steep|hard], and it began to rain. {N} slept under {spot} and ate"
        ' only {food}. "[Shall I turn back|Is it too far for me]?" {he} thought. But in the'
        " morning {he} [got up|stood up] and went on.",
        "On the [third|seventh] day, {N} climbed one last hill. And there it was: {goal}! It was"
        " more beautiful than in any [book|dream]. {N} [laughed out loud|sat still and looked for a"
        " long time].",
        'Then {he} went home and told everyone about it. ["It is not far," said {N}, "if you take'
        ' one step at a time."|And {he} never forgot that day.]',
    ),
    "building {made}": (
        '{N} wanted to build {made}. ["That is too hard for you," said the others.|{He} had never'
        " built anything before.] But {N} [found some wood, a rope and a nail|drew a plan and began"
        " to work].",
        'The first time, it [fell apart|broke in two]. The others laughed. "[I will try again|Never'
        ' mind]," said {N}. The second time, [the wind blew it over|it was much too heavy]. {N}'
        " [was tired|felt sad] and went to bed.",
        'In the morning {F} the {friend} came to {place}. "May I help?" asked {F}. "You hold this'
        ' side, and I hold that side." They worked until [noon|evening].',
        "The third time, it worked! {N} and {F} had built {made}, and it was [strong and beautiful|"
        "the finest in the land]. Nobody laughed now. [Everyone wanted to see it.|Everyone"
        " clapped.]",
        '"[We did it|Trying again is the secret]," said {N} with a smile. [And the next day they'
        " began to build something new.|That night they celebrated with {food}.]",
    ),
    "telling the truth": (
        "One {weather} day, {N} was playing with a {thing} [in the kitchen|in the house]. {He} did"
        " not look where {he} was going. Crash! {His} mother's favourite [cup|vase|plate] fell down"
        " and broke.",
        "{N} was [frightened|worried]. {He} hid the pieces behind {spot} and ran to {place}. [But"
        ' {he} could not play.|All day {he} had a strange feeling in {his} belly.] "What is wrong?"'
        " asked {F} the {friend}.",
        '{N} told {F} everything. "[Tell the truth|Go home and say it]," said {F}. "It is hard for'
        ' a minute, and then it is easy."',
        'So {N} went home. "Mother, I broke it," {he} said. "I am sorry." {His} mother was quiet'
        ' for a moment. Then she said, "[Thank you for telling me|A cup is only a cup]. [I am proud'
        ' of you|The truth is worth more]."',
        "They glued the pieces together, and {N} [felt light again|slept well that night].",
    ),
    "a great storm": (
        "[One night|One evening], a great storm came over {place}. The wind howled and the"
        " rain fell"
        " like stones. {N} [closed the window|lit a lamp] and listened.",
        'Knock, knock! At the door stood {F}, a wet {friend}. "My home blew away," said {F}. "Come'
        ' in," said {N}. "There is room by the fire." Soon there was another knock. It was a'
        ' family of [mice|birds|rabbits]. "Come in, come in!" said {N}.',
        "[The house was small and full|It was crowded], but nobody minded. They ate {food}, sang"
        " songs and told stories [until the candle went out|until they fell asleep].",
        "In the morning the storm was over, and a rainbow stood in the sky. Together they"
        " [built {F}"
        " a new home|mended the roof and cleaned the path]. [Many hands make light work.|It took"
        " only one day.]",
        '"[A full house is a happy house|Thank you for opening the door]," said {F}, and {N}'
        " smiled.",
    ),
    "a race": (
        "Every year there was a race from {place} to {place2}. {F} the {friend} was the fastest of"
        ' all. "Nobody can beat me!" said {F}. {N} was [slow|not very fast], but {he} wanted to'
        " try.",
        "[Ready, set, go!|One, two, three, go!] {F} ran ahead and was soon out of sight. {N}"
        " went on,"
        " step by step, and did not [stop|look around].",
        'Halfway there, {F} [stopped to eat {food}|lay down for a nap under {spot}]. "I have plenty'
        ' of time," thought {F}. But {N} [came closer and closer|walked quietly past].',
        "When {F} [woke up|looked up], it was too late. {N} had crossed the line! Everyone [clapped"
        ' and cheered|shouted with joy]. {F} came over and said, "[Well done|That was a good race].'
        ' I should not have boasted."',
        "{N} shared the prize with {F}. [Slow and steady wins the race.|It was {food2}, and"
        " there was"
        " enough for everyone.]",
    ),
    "a surprise": (
        'It was {N}\'s birthday, but nobody said a word. ["Did everyone forget?" {he} thought.|{He}'
        " looked for a letter, but there was none.] {He} went to {place} and sat down [alone|near"
        " {spot}].",
        'Then {F} the {friend} came running. "Come quickly!" said {F}. "I need your help!" {N}'
        " [jumped up|got up at once] and followed {F} over the hill.",
        'Behind {spot2} it was dark and still. Suddenly, lights went on everywhere. "Surprise!"'
        " shouted all {his} friends. There was {food}, and [music|a big cake with candles], and a"
        " {thing} with a bow on it.",
        '"We did not forget," said {F}. "We wanted to see you smile." And {N} [smiled from ear to'
        " ear|laughed and cried at the same time].",
        "They danced until the moon was high. [It was the best birthday of all.|That night {N} fell"
        " asleep with a happy heart.]",
    ),
    "a strange noise": (
        "[One night|Late one evening], {N} heard a strange noise. [Tap, tap, tap|Scratch, scratch|"
        'Hoo, hoo], it went. It came from {place}. "What can that be?" {he} [whispered|thought].',
        '{N} woke up {F} the {friend}. "[Maybe it is a monster|Perhaps it is a ghost]," said {F}.'
        ' "[Let us go and see|There is only one way to find out]," said {N}. They took a lantern'
        " and went out on the tips of their toes.",
        "The noise grew louder. They looked behind {spot}. [Nothing.|There was nobody.] They looked"
        " near {spot2}. And there they saw it: a [baby bird|kitten|tiny mouse] playing with a"
        " {thing}!",
        '{N} and {F} laughed until they had to sit down. "[You gave us a fright, little one|So you'
        ' are our monster]," said {N}. They carried it home and gave it {food}.',
        "[Most things are less scary when you look at them.|After that, {N} slept without fear.]",
    ),
}

FEARS = phrases(
    "the dark|thunder|deep water|high places|big dogs|the old bridge|shadows|the cold wind"
)
GOALS = phrases(
    "the sea|the top of the mountain|the city of lights|the great waterfall|the end of the"
    " rainbow|the northern lights|the desert|the biggest tree in the world"
)
MADE = phrases(
    "a boat|a kite|a bridge|a tree house|a cart|a windmill|a snow castle|a flying machine|"
    "a wooden bench|a raft"
)
